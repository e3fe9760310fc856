/* SPDX-License-Identifier: Apache-2.0 */
/* ucckpt info: describes a checkpoint and lists its problems. */
#include <getopt.h>

#include "ckpt/base/array.h"
#include "cmd/cmd.h"

int cmd_info(struct uckpt *u, int argc, char **argv)
{
	unsigned flags = 0;
	const struct cmd_option options[] = {
		{ "json", .help = "print JSON", .flags = &flags, .bit = UCKPT_JSON },
		{ "quick", .help = "read only one rank's files",
		  .flags = &flags, .bit = UCKPT_QUICK },
	};
	const struct cmd_syntax syntax = {
		"usage: ucckpt info [--json] [--quick] DIRECTORY...\n"
		"\n"
		"Describe the ZeRO checkpoint in DIRECTORY (of a tag, or of a run for its newest\n"
		"tag) or its Hugging Face weights, and list everything that is missing or damaged.\n"
		"Several are one whose files are spread over them.",
		"Exit status: 0 no problems, 1 problems found, 2 wrong usage.",
		options, COUNT(options), 0, "a DIRECTORY",
	};
	struct uckpt_error err = { "" };
	int status;

	if (!cmd_parse(u, argc, argv, &syntax, &status))
		return status;
	return cmd_exit(uckpt_info(u, (const char *const *)argv + optind,
				   (size_t)(argc - optind), flags, &err),
			&err, CMD_FAILED);
}
