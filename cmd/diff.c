/* SPDX-License-Identifier: Apache-2.0 */
/* ucckpt diff: compares two checkpoints. */
#include <getopt.h>

#include "ckpt/base/array.h"
#include "cmd/cmd.h"

int cmd_diff(struct uckpt *u, int argc, char **argv)
{
	unsigned flags = 0;
	const struct cmd_option options[] = {
		{ "all",
		  .help = "print all states, not only those of the ten parameters that\n"
			  "differ most",
		  .flags = &flags, .bit = UCKPT_ALL },
		{ "rtol", 0, "NUMBER",
		  "elements are equal, too, if |a - b| <= atol + rtol * |b|",
		  .set = "rtol" },
		{ "atol", 0, "NUMBER", "(default: both 0)", .set = "atol" },
		{ "json", .help = "print JSON", .flags = &flags, .bit = UCKPT_JSON },
		{ "strict",
		  .help = "count as differences also equal values of different types, states\n"
			  "that one side lacks for all parameters, and tied parameters that\n"
			  "one side stores once",
		  .flags = &flags, .bit = UCKPT_STRICT },
	};
	const struct cmd_syntax syntax = {
		"usage: ucckpt diff [OPTION]... A B\n"
		"\n"
		"Compare two checkpoints, parameter by parameter and state by state.  Each is a\n"
		"ZeRO checkpoint (the directory of a tag, or of a run for its newest tag), a\n"
		"universal checkpoint or a Hugging Face model, on a disk or mounted.  '{A,B}'\n"
		"is one whose files are spread over A and B.",
		"Exit status: 0 equal, 1 different, 2 trouble.",
		options, COUNT(options), 2, "A and B",
	};
	struct uckpt_error err = { "" };
	int status;

	if (!cmd_parse(u, argc, argv, &syntax, &status))
		return status;
	return cmd_exit(uckpt_diff(u, argv[optind], argv[optind + 1], flags, &err),
			&err, CMD_TROUBLE);
}
