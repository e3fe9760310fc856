/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt: reads, checks, converts and compares checkpoints without a mount.  Most commands
 * are functions of the library (uckpt.h); ls, cat and extract read its tree, and extents
 * asks a mount.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/meter.h"
#include "cmd/cmd.h"
#include "cmd/progress.h"

static const struct {
	const char *name;
	int (*run)(struct uckpt *u, int argc, char **argv);
	const char *summary;
} commands[] = {
	{ "info", cmd_info, "describe a checkpoint and list its problems" },
	{ "check", cmd_check, "check that a checkpoint is whole" },
	{ "ls", cmd_ls, "list the files that a mount would show" },
	{ "cat", cmd_cat, "write such a file to standard output" },
	{ "extract", cmd_extract, "write such files to a directory" },
	{ "convert", cmd_convert,
	  "write its universal tree or its weights to a directory" },
	{ "diff", cmd_diff, "compare two checkpoints" },
	{ "pack", cmd_pack, "write a checkpoint to one smaller, mountable file" },
	{ "unpack", cmd_unpack, "restore the directory from a pack" },
	{ "extents", cmd_extents, "locate the bytes of a mounted file" },
};

static void print_help(void)
{
	puts("usage: ucckpt [-o OPTION,...] COMMAND [OPTION]... [ARGUMENT]...\n"
	     "\n"
	     "Inspect and convert DeepSpeed ZeRO checkpoints.\n");
	for (size_t i = 0; i < COUNT(commands); i++)
		printf("  %-10s%s\n", commands[i].name, commands[i].summary);
	puts("\n"
	     "  -h, --help     print this help; see also 'ucckpt COMMAND --help'\n"
	     "  -V, --version  print the version\n"
	     "  -o OPTION,...  options of a mount, about servers and views: s3_endpoint=URL,\n"
	     "                 ranks=8, hf_dtype=bf16, model=ema, ...; see ucfs(1)\n"
	     "\n"
	     "Exit status: 0 done, 1 failed or a checkpoint is damaged, 2 wrong usage;\n"
	     "of diff: 0 equal, 1 different, 2 trouble.");
}

/* Set options, which are separated by commas.  A number after a comma belongs to the previous
 * option: ranks=8,16.  Cuts `list`. */
static int set_options(struct uckpt *u, char *list)
{
	struct uckpt_error err;
	char *option;
	int rc;

	while ((option = strsep(&list, ","))) {
		while (list && *list >= '0' && *list <= '9') {
			list[-1] = ',';
			strsep(&list, ",");
		}
		rc = uckpt_set(u, option, &err);
		if (rc) {
			cmd_say("-o %s; see 'ucckpt --help'", err.text);
			return CMD_USAGE;
		}
	}
	return CMD_OK;
}

static int run(struct uckpt *u, int argc, char **argv)
{
	const char *word = argv[1];

	if (argc < 2) {
		cmd_say("no command given; see 'ucckpt --help'");
		return CMD_USAGE;
	}
	if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0) {
		print_help();
		return CMD_OK;
	}
	if (strcmp(word, "-V") == 0 || strcmp(word, "--version") == 0) {
		printf("ucckpt %s\n", uckpt_version());
		return CMD_OK;
	}
	for (size_t i = 0; i < COUNT(commands); i++)
		if (strcmp(word, commands[i].name) == 0)
			return commands[i].run(u, argc - 1, argv + 1);
	cmd_say("unknown %s '%s'; see 'ucckpt --help'",
		*word == '-' ? "option" : "command", word);
	return CMD_USAGE;
}

static void say_warning(void *arg, const char *text)
{
	(void)arg;
	cmd_say("warning: %s", text);
}

static void say_note(void *arg, const char *text)
{
	(void)arg;
	cmd_say("%s", text);
}

static void show_step(void *arg, const char *what, uint64_t done, uint64_t total)
{
	(void)arg;
	meter_step(what, done, total);
}

static void put_report(void *arg, const char *text, size_t len)
{
	(void)arg;
	meter_clear();
	fwrite(text, 1, len, stdout);
}

const struct uckpt_calls cmd_calls = {
	.warning = say_warning,
	.note = say_note,
	.progress = progress_show,
	.step = show_step,
	.report = put_report,
};

/* Copy the arguments, and hide the secrets of the command line, which other users see. */
static char **take_arguments(int argc, char **argv)
{
	static char **copy; /* kept until the process ends */

	copy = calloc((size_t)argc + 1, sizeof(*copy));
	for (int i = 0; copy && i < argc; i++) {
		copy[i] = strdup(argv[i]);
		if (!copy[i])
			return NULL;
		uckpt_hide_secrets(argv[i]);
	}
	return copy;
}

int main(int argc, char **arguments)
{
	struct uckpt *u = uckpt_new();
	char **argv = take_arguments(argc, arguments);
	int rc = CMD_OK;

	if (!u || !argv) {
		cmd_say("out of memory");
		return CMD_FAILED;
	}
	uckpt_set_calls(u, &cmd_calls);
	meter_start("ucckpt");
	for (; !rc && argc > 2 && strcmp(argv[1], "-o") == 0;
	     argc -= 2, argv += 2)
		rc = set_options(u, argv[2]);
	rc = rc ? rc : run(u, argc, argv);
	meter_stop();
	uckpt_free(u);
	errno = 0;
	if (fflush(stdout) == 0 && !ferror(stdout))
		return rc;
	cmd_say("cannot write to standard output: %s",
		errno ? strerror(errno) : "write failed");
	return rc != CMD_USAGE && strcmp(argv[1], "diff") == 0 ? CMD_TROUBLE
	       : rc == CMD_OK                                  ? CMD_FAILED
							       : rc;
}
