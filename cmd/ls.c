/* SPDX-License-Identifier: Apache-2.0 */
/* ucckpt ls and ucckpt cat: list and print the files that a mount would show. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/meter.h"
#include "cmd/cmd.h"
#include "cmd/find.h"
#include "cmd/progress.h"

#define LONG 1u
#define CAT_BYTES (1 << 20) /* bytes read at once */

/* Print size and time, but not of directories: that would make their views. */
static int print_long(struct uckpt *u, const struct found *f,
		      struct uckpt_error *err)
{
	struct uckpt_attr attr;
	char when[32];
	struct tm tm;
	time_t t;
	int rc;

	if (f->type != S_IFREG) {
		printf("%14s  %16s  ", "-", "-");
		return 0;
	}
	rc = uckpt_stat(u, f->node, &attr, err);
	if (rc)
		return rc;
	meter_clear();
	t = (time_t)(attr.mtime_ns / 1000000000);
	localtime_r(&t, &tm);
	strftime(when, sizeof(when), "%Y-%m-%d %H:%M", &tm);
	printf("%14" PRIu64 "  %s  ", attr.size, when);
	return 0;
}

static int list(struct uckpt *u, char *const *argv, unsigned flags)
{
	static char *everything[] = { "", NULL };
	char *const *patterns = argv[1] ? argv + 1 : everything;
	struct uckpt_error err = { "" };
	struct found_list l = { 0 };
	int rc = uckpt_open(u, (const char *const *)argv, 1, &err);

	for (size_t i = 0; !rc && patterns[i]; i++)
		rc = find_pattern(u, patterns[i], false, &l, &err);
	if (!rc)
		found_sort(&l);
	for (size_t i = 0; !rc && i < l.n; i++) {
		rc = flags & LONG ? print_long(u, &l.v[i], &err) : 0;
		if (rc)
			break;
		cmd_put(l.v[i].path);
		puts(l.v[i].type == S_IFDIR ? "/" : "");
	}
	found_done(&l);
	return cmd_exit(rc, &err, CMD_FAILED);
}

int cmd_ls(struct uckpt *u, int argc, char **argv)
{
	unsigned flags = 0;
	const struct cmd_option options[] = {
		{ "long", 'l', .help = "print sizes and times, too",
		  .flags = &flags, .bit = LONG },
	};
	const struct cmd_syntax syntax = {
		"usage: ucckpt [-o OPTION,...] ls [-l] SOURCE [PATTERN]...\n"
		"\n"
		"List the files that a mount of SOURCE would show: its root, or what PATTERN, such as\n"
		"'*_hf/*.safetensors', matches; of a directory, its entries.",
		NULL,
		options,
		COUNT(options),
		0,
		"a SOURCE",
	};
	int status;

	return cmd_parse(u, argc, argv, &syntax, &status)
		       ? list(u, argv + optind, flags)
		       : status;
}

static int copy_to_stdout(struct uckpt_file *file, struct uckpt_error *err)
{
	char *buf = malloc(CAT_BYTES);
	uint64_t at = 0;
	int64_t n = buf ? 1 : -ENOMEM;

	while (n > 0 &&
	       (n = uckpt_file_read(file, buf, CAT_BYTES, at, err)) > 0) {
		if (fwrite(buf, 1, (size_t)n, stdout) != (size_t)n)
			break; /* main reports the error */
		at += (uint64_t)n;
		progress_show(NULL, at, uckpt_file_size(file));
	}
	free(buf);
	return n < 0 ? (int)n : 0;
}

static int cat(struct uckpt *u, const char *source, const char *path)
{
	struct uckpt_error err = { "" };
	struct uckpt_file *file = NULL;
	struct uckpt_attr attr;
	uint64_t node;
	int rc = uckpt_open(u, &source, 1, &err)
			 ?: uckpt_find(u, path, &node, &err)
			 ?: uckpt_stat(u, node, &attr, &err);

	if (!rc)
		rc = S_ISDIR(attr.mode) ? -EISDIR
					: uckpt_file_open(u, node, &file, &err)
						  ?: copy_to_stdout(file, &err);
	uckpt_file_close(file);
	if (rc && !*err.text)
		snprintf(err.text, sizeof(err.text), "%s: %s", path,
			 strerror(-rc));
	return cmd_exit(rc, &err, CMD_FAILED);
}

int cmd_cat(struct uckpt *u, int argc, char **argv)
{
	const struct cmd_syntax syntax = {
		"usage: ucckpt [-o OPTION,...] cat SOURCE PATH\n"
		"\n"
		"Write a file that a mount of SOURCE would show, such as TAG_hf/config.json, to\n"
		"standard output, which must not be a terminal.",
		NULL,
		NULL,
		0,
		2,
		"SOURCE and PATH",
	};
	int status;

	if (!cmd_parse(u, argc, argv, &syntax, &status))
		return status;
	if (isatty(STDOUT_FILENO)) {
		cmd_say("cat: standard output is a terminal; redirect it to a file");
		return CMD_FAILED;
	}
	return cat(u, argv[optind], argv[optind + 1]);
}
