/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt: inspects, checks, converts and compares checkpoints without a mount.
 *
 *     info	describe a checkpoint and its problems	cmd/info.c
 *     check	prove a checkpoint whole		cmd/check.c
 *     convert	write the trees that a mount shows	cmd/convert.c
 *     diff	compare two checkpoints			cmd/diff.c
 *     pack	write a checkpoint to one smaller file	packing/cmd_pack.c
 *     unpack	write a pack's directory again		packing/cmd_pack.c
 *     extents	locate a mounted file's bytes		cmd/extents.c
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/cmd/cmd.h"
#include "ckpt/cmd/progress.h"
#include "ckpt/files/files.h"
#include "ckpt/packing/cmd_pack.h"
#include "ckpt/remote/remote_options.h"
#include "ckpt/remote/site.h"

static const struct {
	const char *name;
	int (*run)(struct uckpt *u, int argc, char **argv);
	const char *summary;
} commands[] = {
	{ "info", cmd_info, "describe a checkpoint and list its problems" },
	{ "check", cmd_check, "check that a checkpoint is whole" },
	{ "convert", cmd_convert,
	  "write its universal tree or its weights to a directory" },
	{ "diff", cmd_diff, "compare two checkpoints" },
	{ "pack", cmd_pack, "write a checkpoint to one smaller, mountable file" },
	{ "unpack", cmd_unpack, "restore the directory from a pack" },
	{ "extents", cmd_extents, "locate the bytes of a mounted file" },
};

#define NCOMMANDS (sizeof(commands) / sizeof(*commands))

static void main_print_help(void)
{
	puts("usage: ucckpt [-o OPTION,...] COMMAND [OPTION]... [ARGUMENT]...\n"
	     "\n"
	     "Inspect and convert DeepSpeed ZeRO checkpoints.\n");
	for (size_t i = 0; i < NCOMMANDS; i++)
		printf("  %-10s%s\n", commands[i].name, commands[i].summary);
	puts("\n"
	     "  -h, --help     print this help; see also 'ucckpt COMMAND --help'\n"
	     "  -V, --version  print the version\n"
	     "  -o OPTION,...  how servers are asked: deadline=SECONDS, manifest=FILE,\n"
	     "                 ca_file=FILE, s3_endpoint=URL, s3_region=NAME,\n"
	     "                 s3_anonymous; see ucfs(1)\n"
	     "\n"
	     "Exit status: 0 done, 1 failed or a checkpoint is damaged,"
	     " 2 wrong usage;\n"
	     "of diff: 0 equal, 1 different, 2 trouble.");
}

static void say_gone(const char *option)
{
	cmd_say("-o %s has no effect in this version and will be an error in the"
		" next",
		option);
}

/* Set options about servers. */
static bool set_options(struct uckpt *u, const char *list)
{
	struct errmsg err;

	if (remote_options_set_all(u, list, say_gone, &err) == 0)
		return true;
	cmd_say("-o %s; see 'ucckpt --help'", err.text);
	return false;
}

static int main_run(struct uckpt *u, int argc, char **argv)
{
	const char *const word = argv[1];

	if (argc < 2) {
		cmd_say("no command given; see 'ucckpt --help'");
		return CMD_USAGE;
	}
	if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0) {
		main_print_help();
		return CMD_OK;
	}
	if (strcmp(word, "-V") == 0 || strcmp(word, "--version") == 0) {
		puts("ucckpt " PACKAGE_VERSION);
		return CMD_OK;
	}
	for (size_t i = 0; i < NCOMMANDS; i++)
		if (strcmp(word, commands[i].name) == 0)
			return commands[i].run(u, argc - 1, argv + 1);
	cmd_say("unknown %s '%s'; see 'ucckpt --help'",
		*word == '-' ? "option" : "command", word);
	return CMD_USAGE;
}

static void put_report(void *arg, const char *text, size_t len)
{
	(void)arg;
	progress_clear();
	fwrite(text, 1, len, stdout);
}

/* Copy the arguments, and hide the secrets of the command line, which other users see. */
static char **take_arguments(int argc, char **argv)
{
	static char **copy; /* to the end of the process */

	copy = calloc((size_t)argc + 1, sizeof(*copy));
	for (int i = 0; copy && i < argc; i++) {
		copy[i] = strdup(argv[i]);
		if (!copy[i])
			return NULL;
		site_hide_secrets(argv[i]);
	}
	return copy;
}

int main(int argc, char **arguments)
{
	struct uckpt *const u = context_new();
	char **argv = take_arguments(argc, arguments);
	int rc = CMD_OK;

	if (!u || !argv) {
		cmd_say("out of memory");
		return CMD_FAILED;
	}
	u->calls.report = put_report;
	u->calls.progress = progress_show;
	for (; !rc && argc > 2 && strcmp(argv[1], "-o") == 0;
	     argc -= 2, argv += 2)
		rc = set_options(u, argv[2]) ? CMD_OK : CMD_USAGE;
	rc = rc ? rc : main_run(u, argc, argv);
	context_free(u);
	errno = 0;
	if (fflush(stdout) == 0 && !ferror(stdout))
		return rc;
	cmd_say("cannot write to standard output: %s",
		errno ? strerror(errno) : "write failed");
	return rc != CMD_USAGE && strcmp(argv[1], "diff") == 0 ? CMD_TROUBLE
	       : rc == CMD_OK                                  ? CMD_FAILED
							       : rc;
}
