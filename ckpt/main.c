/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt: what can be done with a checkpoint without mounting it.
 *
 *     info	what it is, and what is wrong with it	info.c
 *     check	prove it whole before it is relied on	check.c
 *     convert	write its trees to a disk		convert.c
 *     diff	compare two checkpoints			diff.c
 *     extents	where a mounted file's bytes lie	extents.c
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/cmd/cmd.h"

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *summary;
} commands[] = {
	{ "info", cmd_info, "tell what a checkpoint is, and what is wrong" },
	{ "check", cmd_check, "prove a checkpoint whole" },
	{ "convert", cmd_convert, "write its universal tree, or weights, to a directory" },
	{ "diff", cmd_diff, "compare two checkpoints" },
	{ "extents", cmd_extents, "tell where a mounted file's bytes lie" },
};

#define NCOMMANDS (sizeof(commands) / sizeof(*commands))

static void print_help(void)
{
	puts("usage: ucckpt COMMAND [OPTION]... [ARGUMENT]...\n"
	     "\n"
	     "Inspect and convert DeepSpeed ZeRO checkpoints.\n");
	for (size_t i = 0; i < NCOMMANDS; i++)
		printf("  %-10s%s\n", commands[i].name, commands[i].summary);
	puts("\n"
	     "  -h, --help     print this; 'ucckpt COMMAND --help' tells more\n"
	     "  -V, --version  print the version\n"
	     "\n"
	     "Exit status: 0 done, 1 failed or a checkpoint is damaged,"
	     " 2 wrong usage;\n"
	     "of diff: 0 equal, 1 different, 2 trouble.");
}

static int run(int argc, char **argv)
{
	const char *const word = argv[1];

	if (argc < 2) {
		cmd_say("no command given; see 'ucckpt --help'");
		return CMD_USAGE;
	}
	if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0) {
		print_help();
		return CMD_OK;
	}
	if (strcmp(word, "-V") == 0 || strcmp(word, "--version") == 0) {
		puts("ucckpt " PACKAGE_VERSION);
		return CMD_OK;
	}
	for (size_t i = 0; i < NCOMMANDS; i++)
		if (strcmp(word, commands[i].name) == 0)
			return commands[i].run(argc - 1, argv + 1);
	cmd_say("unknown %s '%s'; see 'ucckpt --help'",
		*word == '-' ? "option" : "command", word);
	return CMD_USAGE;
}

int main(int argc, char **argv)
{
	const int rc = run(argc, argv);

	errno = 0;
	if (fflush(stdout) == 0 && !ferror(stdout))
		return rc;
	cmd_say("cannot write to standard output: %s",
		errno ? strerror(errno) : "write failed");
	return rc != CMD_USAGE && strcmp(argv[1], "diff") == 0 ? CMD_TROUBLE :
	       rc == CMD_OK ? CMD_FAILED : rc;
}
