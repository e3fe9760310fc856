/* SPDX-License-Identifier: Apache-2.0 */
/* ucckpt check: proves a checkpoint whole before anyone resumes from it. */
#include <getopt.h>

#include "ckpt/base/array.h"
#include "cmd/cmd.h"

int cmd_check(struct uckpt *u, int argc, char **argv)
{
	unsigned flags = 0;
	const struct cmd_option options[] = {
		{ "data",
		  .help = "also read all tensors: verify checksums and compare replicas",
		  .flags = &flags, .bit = UCKPT_DATA },
		{ "json", .help = "print JSON", .flags = &flags, .bit = UCKPT_JSON },
	};
	const struct cmd_syntax syntax = {
		"usage: ucckpt check [--data] [--json] DIRECTORY...\n"
		"\n"
		"Check that the ZeRO checkpoint in DIRECTORY (of a tag, or of a run for its newest\n"
		"tag) or its Hugging Face weights are whole: all files, all ranks, every element\n"
		"exactly once.  Several are one whose files are spread over them.",
		"Exit status: 0 whole, 1 problems found, 2 wrong usage.",
		options, COUNT(options), 0, "a DIRECTORY",
	};
	struct uckpt_error err = { "" };
	int status;

	if (!cmd_parse(u, argc, argv, &syntax, &status))
		return status;
	status = uckpt_check(u, (const char *const *)argv + optind,
			     (size_t)(argc - optind), flags, &err);
	return cmd_exit(status, &err, CMD_FAILED);
}
