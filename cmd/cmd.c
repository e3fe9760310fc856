/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ucckpt prints.  An error is one line that begins with the program's name.
 * Names and messages may come from a hostile checkpoint, so they are printed as
 * utf8_show shows them.
 */
#include "cmd/cmd.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/meter.h"
#include "ckpt/base/text.h"

#define FIRST_OPTION \
	256 /* getopt_long returns it for this option; no letter has this number */

/* Print text that may come from a file. */
static void put(FILE *to, const char *text)
{
	const char *c;
	unsigned n;

	while ((c = utf8_show(&text, &n)))
		fwrite(c, 1, n, to);
}

static void say(const char *fmt, va_list ap)
{
	char *text;

	if (vasprintf(&text, fmt, ap) < 0) {
		fputs("out of memory", stderr);
		return;
	}
	uckpt_hide_secrets(text);
	put(stderr, text);
	free(text);
}

void cmd_say(const char *fmt, ...)
{
	va_list ap;

	meter_clear();
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

int cmd_exit(int rc, const struct uckpt_error *err, enum cmd_exit failed)
{
	if (rc >= 0)
		return rc;
	cmd_say("%s", *err->text ? err->text : strerror(-rc));
	return failed;
}

/* The help of options with longer names is on the next line. */
#define NAME_COLUMNS_MAX 30

static int name_text(const struct cmd_option *o, char text[64])
{
	return snprintf(text, 64, "  %c%c%c --%s%s%s", o->letter ? '-' : ' ',
			o->letter ? o->letter : ' ', o->letter ? ',' : ' ',
			o->name, o->value ? " " : "", o->value ? o->value : "");
}

static void print_option(const struct cmd_option *o, int column)
{
	const char *line = o->help;
	char name[64];
	int at = name_text(o, name);

	fputs(name, stdout);
	if (at > column) {
		putchar('\n');
		at = 0;
	}
	do {
		const int n = (int)strcspn(line, "\n");

		printf("%*s%.*s\n", column - at, "", n, line);
		line += n;
		at = 0;
	} while (*line++);
}

static const struct cmd_option help_option = { .name = "help",
					       .letter = 'h',
					       .help = "print this" };

static void print_help(const struct cmd_syntax *s)
{
	char name[64];
	int column = name_text(&help_option, name);

	for (size_t i = 0; i < s->n; i++) {
		const int n = name_text(&s->options[i], name);

		if (n > column && n <= NAME_COLUMNS_MAX)
			column = n;
	}
	printf("%s\n\n", s->usage);
	for (size_t i = 0; i < s->n; i++)
		print_option(&s->options[i], column + 2);
	print_option(&help_option, column + 2);
	if (s->ending)
		printf("\n%s\n", s->ending);
}

/* Set an option of the library.  CMD_OK, or CMD_USAGE after a message. */
static int set_in_library(struct uckpt *u, char **argv, const struct cmd_option *o,
			  const char *value)
{

	struct uckpt_error err = { "out of memory" };
	char *option = NULL;
	int rc = CMD_OK;

	if (asprintf(&option, "%s%s%s", o->set, value ? "=" : "",
		     value ? value : "") < 0 ||
	    uckpt_set(u, option, &err))
		rc = cmd_usage(argv[0], "--%s: %s", o->name, err.text);
	free(option);
	return rc;
}

static int set_option(struct uckpt *u, char **argv, const struct cmd_option *o,
		      const char *value)
{
	if (o->flags)
		*o->flags |= o->bit;
	if (o->text)
		*o->text = value;
	return o->set ? set_in_library(u, argv, o, value) : CMD_OK;
}

/* Report the option that getopt_long refused with `c`, ':' or '?'. */
static int bad_option(char **argv, const struct option *options, int c)
{
	const char *word = argv[optind - 1];
	const bool is_long = strncmp(word, "--", 2) == 0;
	struct errmsg why;

	if (c == ':')
		return cmd_usage(argv[0], "%s: needs a value", word);
	if (!optopt) {
		suggest_option(options, word, &why);
		return cmd_usage(argv[0], "%s: %s", word, why.text);
	}
	if (is_long && strchr(word, '='))
		return cmd_usage(argv[0], "%s: takes no value", word);
	return cmd_usage(argv[0], "-%c: unknown option", optopt);
}

static const struct cmd_option *find_option(const struct cmd_syntax *s, int c)
{
	if (c >= FIRST_OPTION)
		return &s->options[c - FIRST_OPTION];
	for (size_t i = 0; i < s->n; i++)
		if (s->options[i].letter == c)
			return &s->options[i];
	return NULL;
}

/* Describe the options to getopt_long, by their numbers in the table. */
static void list_options(const struct cmd_syntax *s, struct option *options,
			 char *letters)
{
	size_t n = 0;

	letters = stpcpy(letters, ":h");
	for (size_t i = 0; i < s->n; i++) {
		const struct cmd_option *o = &s->options[i];
		const int has_value = o->value ? required_argument : no_argument;
		size_t k = 0;

		while (strcmp(s->options[k].name, o->name) != 0)
			k++;
		if (k == i)
			options[n++] = (struct option){ o->name, has_value, NULL,
							FIRST_OPTION + (int)i };
		if (o->letter)
			letters += sprintf(letters, "%c%s", o->letter,
					   o->value ? ":" : "");
	}
	options[n] = (struct option){ "help", no_argument, NULL, 'h' };
}

bool cmd_parse(struct uckpt *u, int argc, char **argv,
	       const struct cmd_syntax *s, int *status)
{
	struct option options[CMD_OPTIONS_MAX + 2] = { 0 };
	char letters[2 * CMD_OPTIONS_MAX + 3];
	int c, n;

	assert(s->n <= CMD_OPTIONS_MAX);
	list_options(s, options, letters);
	*status = CMD_OK;
	while ((c = getopt_long(argc, argv, letters, options, NULL)) != -1) {
		const struct cmd_option *o = find_option(s, c);

		if (c == 'h')
			print_help(s);
		else
			*status = o ? set_option(u, argv, o, optarg)
				    : bad_option(argv, options, c);
		if (c == 'h' || *status)
			return false;
	}
	n = argc - optind;
	if (s->nargs < 0 || (s->nargs ? n == s->nargs : n > 0))
		return true;
	*status = cmd_usage(argv[0], "expected %s", s->args);
	return false;
}

void cmd_put(const char *text)
{
	meter_clear();
	put(stdout, text);
}
