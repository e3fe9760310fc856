/* SPDX-License-Identifier: Apache-2.0 */
/* ucckpt info, check, diff: each calls a function of the library, which reports. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "cmd/cmd.h"
#include "cmd/progress.h"

typedef int report_fn(struct uckpt *u, const char *const *paths, size_t n, unsigned flags,
		      struct uckpt_error *err);

/* Report on the directories that are named.  Only check --data asks whether it should stop; a
 * signal ends any other report at once. */
static int run_report(struct uckpt *u, int argc, char **argv, unsigned flags, report_fn *fn)
{
	struct uckpt_error err = { "" };

	progress_catch_signals();
	return progress_exit(fn(u, (const char *const *)argv + optind, (size_t)(argc - optind), flags,
				&err), argv[0],
			     "nothing was written; the same command begins again, and --part I/N checks a part",
			     &err, CMD_FAILED);
}

/* The HTML page to write, and the result. */
struct page {
	const char *path;
	int rc;
};

/* Write the complete page, so that a failed command does not destroy an older page. */
static void write_page(void *arg, const char *text, size_t len)
{
	struct page *page = arg;
	FILE *f = fopen(page->path, "we");

	if (!f || fwrite(text, 1, len, f) != len)
		page->rc = -errno;
	if (f && fclose(f))
		page->rc = -errno;
}

static int info_page(struct uckpt *u, int argc, char **argv, unsigned flags, const char *path)
{
	struct page page = { .path = path };
	struct uckpt_calls calls = cmd_calls;
	int status;

	calls.arg = &page;
	if (strcmp(path, "-") != 0)
		calls.report = write_page;
	uckpt_set_calls(u, &calls);
	status = run_report(u, argc, argv, flags | UCKPT_HTML, uckpt_info);
	if (!page.rc)
		return status;
	cmd_say("%s: cannot be written: %s", path, strerror(-page.rc));
	return CMD_FAILED;
}

int cmd_info(struct uckpt *u, int argc, char **argv)
{
	unsigned flags = 0;
	const char *html = NULL;
	const struct cmd_option options[] = {
		{ "html", 0, "FILE",
		  "write a page with all of it, and a picture of which file has which\n"
		  "elements of which parameter; - is standard output", .text = &html },
		{ "json", .help = "print JSON", .flags = &flags, .bit = UCKPT_JSON },
		{ "parameters",
		  .help = "a line for each parameter, not one for those of all layers",
		  .flags = &flags, .bit = UCKPT_ALL },
		{ "quick", .help = "read only one rank's files",
		  .flags = &flags, .bit = UCKPT_QUICK },
	};
	const struct cmd_syntax syntax = {
		"usage: ucckpt info [--html FILE] [--json] [--parameters] [--quick] DIRECTORY...\n"
		"\n"
		"Describe the checkpoint in DIRECTORY (of a tag, or of a run: all its tags, and the\n"
		"newest one) or its Hugging Face weights, and list everything that is missing or\n"
		"damaged.  Several are one whose files are spread over them.",
		"Exit status: 0 no problems, 1 problems found, 2 wrong usage.",
		options, COUNT(options), 0, "a DIRECTORY",
	};

	int status;

	if (!cmd_parse(u, argc, argv, &syntax, &status))
		return status;
	if (html && flags & UCKPT_JSON)
		return cmd_usage("info", "--html and --json exclude each other");
	if (html)
		return info_page(u, argc, argv, flags, html);
	return run_report(u, argc, argv, flags, uckpt_info);
}

int cmd_check(struct uckpt *u, int argc, char **argv)
{
	unsigned flags = 0;
	const struct cmd_option options[] = {
		{ "data",
		  .help = "also read all tensors: verify checksums and compare replicas",
		  .flags = &flags, .bit = UCKPT_DATA },
		{ "json", .help = "print JSON", .flags = &flags, .bit = UCKPT_JSON },
		CMD_PART,
	};
	const struct cmd_syntax syntax = {
		"usage: ucckpt check [--data] [--json] [--part I/N] DIRECTORY...\n"
		"\n"
		"Check that the ZeRO checkpoint in DIRECTORY (of a tag, or of a run for its newest\n"
		"tag) or its Hugging Face weights are whole: all files, all ranks, every element\n"
		"exactly once.  Several are one whose files are spread over them.",
		"Exit status: 0 whole, 1 problems found, 2 wrong usage.",
		options, COUNT(options), 0, "a DIRECTORY",
	};

	int status;

	if (!cmd_parse(u, argc, argv, &syntax, &status))
		return status;
	return run_report(u, argc, argv, flags, uckpt_check);
}

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
	progress_catch_signals();
	return progress_exit(uckpt_diff(u, argv[optind], argv[optind + 1], flags, &err), argv[0],
			     "nothing was written; the same command begins again", &err, CMD_TROUBLE);
}
