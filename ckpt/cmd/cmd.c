/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ucckpt talks.  Errors are one line each and begin with the program's
 * name; what a checkpoint's author chose (names of parameters) is printed
 * without control characters, since it lands on a terminal.
 */
#include "ckpt/cmd/cmd.h"

#include <cJSON.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define INT64_LEN 24

void cmd_say(const char *fmt, ...)
{
	va_list ap;

	fputs("ucckpt: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

int cmd_usage(const char *command, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "ucckpt: %s: ", command);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "; see 'ucckpt %s --help'\n", command);
	return CMD_USAGE;
}

int cmd_bad_option(char **argv, int c)
{
	const char *const word = argv[optind - 1];
	const bool is_long = strncmp(word, "--", 2) == 0;

	if (c == ':')
		return cmd_usage(argv[0], "%s needs a value", word);
	if (!optopt)
		return cmd_usage(argv[0], "unknown option %s", word);
	if (is_long && strchr(word, '='))
		return cmd_usage(argv[0], "%.*s takes no value",
				 (int)strcspn(word, "="), word);
	return cmd_usage(argv[0], "unknown option -%c", optopt);
}

int cmd_put(const char *text)
{
	int n = 0;

	for (; *text; text++, n++)
		putchar((unsigned char)*text < 0x20 || *text == 0x7f ? '?' :
								       *text);
	return n;
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
	char *const text = cJSON_Print(root);

	if (text)
		puts(text);
	else
		cmd_say("out of memory");
	cJSON_free(text);
	cJSON_Delete(root);
	return text ? CMD_OK : CMD_FAILED;
}
