/* SPDX-License-Identifier: Apache-2.0 */
/* ucckpt pack and ucckpt unpack. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/text.h"
#include "cmd/cmd.h"
#include "cmd/progress.h"

#define SUFFIX ".ucpack"
#define CHECK 1u

/* Read a command line with one path.  NULL if the command must end with the exit code `*status`. */
static char *parse(struct uckpt *u, int argc, char **argv, const char *usage,
		   const struct cmd_option *options, size_t n, int *status)
{
	const struct cmd_syntax syntax = { usage, NULL, options, n, -1, NULL };

	if (!cmd_parse(u, argc, argv, &syntax, status))
		return NULL;
	if (argc - optind == 1)
		return argv[optind];
	*status = optind < argc
			  ? cmd_usage(argv[0], "'%s' is one argument too many",
				      argv[optind + 1])
			  : cmd_usage(argv[0], "no path given");
	return NULL;
}

/* Print the result of the work; `more` follows the bytes of the files.  Returns an exit code. */
static int report(int rc, const char *name, const struct uckpt_done *done,
		  const char *more, const struct uckpt_error *err)
{
	if (rc)
		return progress_exit(rc, name, "nothing was left there; the same command begins again",
				     err, CMD_FAILED);
	progress_print(name, done, more);
	return CMD_OK;
}

static int pack(struct uckpt *u, const char *dir, const char *out)
{
	char size[SIZE_TEXT_LEN], more[SIZE_TEXT_LEN + 32];
	struct uckpt_error err = { "" };
	struct uckpt_done done = { 0 };
	int rc;

	progress_protect_output();
	rc = uckpt_pack(u, dir, out, &done, &err);
	snprintf(more, sizeof(more), " in %s (%.1f %%)",
		 size_text(done.packed, size),
		 done.bytes ? 100.0 * (double)done.packed / (double)done.bytes
			    : 100.0);
	return report(rc, out, &done, more, &err);
}

int cmd_pack(struct uckpt *u, int argc, char **argv)
{
	const char *out = NULL;
	const struct cmd_option options[] = {
		{ "output", 'o', "FILE", "the pack's name", .text = &out },
		{ "jobs", 'j', "N", "threads (default: processors)",
		  .set = "jobs" },
	};
	char *dir, *name;
	int rc;

	dir = parse(
		u, argc, argv,
		"usage: ucckpt pack [OPTION]... TAG\n"
		"\n"
		"Write the files of a tag's directory, or of any other, to TAG" SUFFIX
		", without\n"
		"loss, and decode and compare all of it before it appears.  ucfs and"
		" ucckpt read\n"
		"it like the directory.",
		options, COUNT(options), &rc);
	if (!dir)
		return rc;
	for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/'; n--)
		dir[n - 1] = '\0';
	if (out)
		return pack(u, dir, out);
	if (asprintf(&name, "%s" SUFFIX, dir) < 0) {
		cmd_say("out of memory");
		return CMD_FAILED;
	}
	rc = pack(u, dir, name);
	free(name);
	return rc;
}

/* Cut the suffix of a pack, which leaves the directory's name.  False if the suffix is another
 * one. */
static bool cut_suffix(char *pack)
{
	const size_t n = strlen(pack), s = strlen(SUFFIX);

	if (n <= s || pack[n - s - 1] == '/' ||
	    strcmp(pack + n - s, SUFFIX) != 0)
		return false;
	pack[n - s] = '\0';
	return true;
}

static int unpack(struct uckpt *u, const char *in, const char *out)
{
	struct uckpt_error err = { "" };
	struct uckpt_done done = { 0 };
	int rc;

	progress_protect_output();
	rc = uckpt_unpack(u, in, out, &done, &err);
	return report(rc, out ? out : in, &done, out ? "" : ", all as packed",
		      &err);
}

int cmd_unpack(struct uckpt *u, int argc, char **argv)
{
	unsigned flags = 0;
	const char *out = NULL;
	const struct cmd_option options[] = {
		{ "output", 'o', "DIR", "the directory's name (default: FILE)",
		  .text = &out },
		{ "check", .help = "decode and compare only; write nothing",
		  .flags = &flags, .bit = CHECK },
		{ "jobs", 'j', "N", "threads (default: processors)",
		  .set = "jobs" },
	};
	char *in, *name;
	int rc;

	in = parse(u, argc, argv,
		   "usage: ucckpt unpack [OPTION]... FILE" SUFFIX "\n"
		   "\n"
		   "Write the directory that a pack was made of, every file byte for byte,"
		   " with its\n"
		   "mode and time.  It appears whole or not at all.",
		   options, COUNT(options), &rc);
	if (!in)
		return rc;
	if (flags & CHECK && out)
		return cmd_usage(argv[0], "--check writes nothing");
	if (flags & CHECK || out)
		return unpack(u, in, out);
	name = strdup(in);
	if (!name) {
		cmd_say("out of memory");
		return CMD_FAILED;
	}
	rc = cut_suffix(name) ? unpack(u, in, name)
			      : cmd_usage(argv[0],
					  "'%s' has no suffix " SUFFIX
					  ": name the directory with -o",
					  in);
	free(name);
	return rc;
}
