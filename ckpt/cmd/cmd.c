/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ucckpt prints.  An error is one line that begins with the program's name.
 * Names and messages may come from a hostile checkpoint, so they are printed as
 * utf8_show shows them.
 */
#include "ckpt/cmd/cmd.h"

#include <assert.h>
#include <cJSON.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/nearest.h"
#include "ckpt/base/utf8.h"
#include "ckpt/remote/site.h"
#include "ckpt/files/files.h"
#include "ckpt/files/roots.h"

#define INT64_LEN 24

/* Print text that may come from a file.  Returns the number of characters. */
static int put(FILE *to, const char *text)
{
	const char *c;
	unsigned n;
	int columns = 0;

	for (; (c = utf8_show(&text, &n)); columns++)
		fwrite(c, 1, n, to);
	return columns;
}

static void say(const char *fmt, va_list ap)
{
	char *text;

	if (vasprintf(&text, fmt, ap) < 0) {
		fputs("out of memory", stderr);
		return;
	}
	site_hide_secrets(text);
	put(stderr, text);
	free(text);
}

void cmd_say(const char *fmt, ...)
{
	va_list ap;

	fputs("ucckpt: ", stderr);
	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

int cmd_usage(const char *command, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "ucckpt: %s: ", command);
	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
	fprintf(stderr, "; see 'ucckpt %s --help'\n", command);
	return CMD_USAGE;
}

int cmd_bad_option(char **argv, const struct option *options, int c)
{
	const char *const word = argv[optind - 1];
	const bool is_long = strncmp(word, "--", 2) == 0;
	struct errmsg why;

	assert(c == ':' || c == '?');
	if (c == ':')
		return cmd_usage(argv[0], "%s requires a value", word);
	if (!optopt) {
		nearest_describe_option(options, word, &why);
		return cmd_usage(argv[0], "%s: %s", word, why.text);
	}
	if (is_long && strchr(word, '='))
		return cmd_usage(argv[0], "%.*s takes no value",
				 (int)strcspn(word, "="), word);
	return cmd_usage(argv[0], "unknown option -%c", optopt);
}

bool cmd_parse_flags(int argc, char **argv, const struct cmd_flag *flags,
		     size_t n, int nargs, const char *expected,
		     void (*print_help)(void), int *status)
{
	struct option options[CMD_FLAGS_MAX + 2] = { 0 };
	int c;

	assert(n <= CMD_FLAGS_MAX);
	for (size_t i = 0; i < n; i++) /* numbers that no character has */
		options[i] = (struct option){ flags[i].name, no_argument, NULL,
					      256 + (int)i };
	options[n] = (struct option){ "help", no_argument, NULL, 'h' };
	while ((c = getopt_long(argc, argv, ":h", options, NULL)) >= 256)
		*flags[c - 256].set = true;
	if (c == -1 && (nargs ? argc - optind == nargs : argc > optind))
		return true;
	if (c == 'h')
		print_help();
	*status = c == 'h'  ? CMD_OK
		  : c == -1 ? cmd_usage(argv[0], "expected %s", expected)
			    : cmd_bad_option(argv, options, c);
	return false;
}

char *cmd_source(char *const *args, size_t n)
{
	struct errmsg err = { "" };
	char *path = NULL;
	const int rc = files_unite(args, n, &path, &err);

	for (size_t i = 0; i < n; i++) /* other users see the command line */
		site_hide_secrets(args[i]);
	if (!rc)
		return path;
	cmd_say("%s", err.text);
	free(path);
	return NULL;
}

int cmd_put(const char *text)
{
	return put(stdout, text);
}

const char *cmd_size(uint64_t bytes, char buf[CMD_SIZE_LEN])
{
	static const char *const units[] = { "KiB", "MiB", "GiB", "TiB",
					     "PiB", "EiB" };
	double v = (double)bytes / 1024;
	size_t i = 0;

	if (bytes < 1024) {
		snprintf(buf, CMD_SIZE_LEN, "%u bytes", (unsigned)bytes);
		return buf;
	}
	while (v >= 1024) {
		v /= 1024;
		i++;
	}
	assert(i < sizeof(units) / sizeof(*units));
	snprintf(buf, CMD_SIZE_LEN, "%.1f %s", v, units[i]);
	return buf;
}

void cmd_json_add_int(cJSON *object, const char *key, int64_t value)
{
	char text[INT64_LEN];

	snprintf(text, sizeof(text), "%" PRId64, value);
	cJSON_AddRawToObject(object, key, text);
}

int cmd_json_print(cJSON *root)
{
	struct bytebuf text = { 0 };
	int rc = CMD_OK;

	json_write(&text, root, true);
	bytebuf_add_u8(&text, '\n');
	if (text.failed) {
		cmd_say("out of memory");
		rc = CMD_FAILED;
	} else {
		fwrite(text.data, 1, text.len, stdout);
	}
	bytebuf_done(&text);
	cJSON_Delete(root);
	return rc;
}
