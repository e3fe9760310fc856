/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CMD_H
#define UCKPT_CMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cJSON;

/*
 * The commands of ucckpt.  Each takes its own command line (`argv[0]` is its
 * name), may print, and returns an exit code.
 */
enum cmd_exit {
	CMD_OK = 0,
	CMD_FAILED = 1, /* failed, or the checkpoint is damaged */
	CMD_USAGE = 2,
	/* The exit codes of diff follow diff(1). */
	CMD_DIFFER = 1,
	CMD_TROUBLE = 2,
};

int cmd_info(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_extents(int argc, char **argv);
/* cmd_check, cmd_diff and others are declared in their own rooms. */

/* --- what they share ------------------------------------------------------ */

/* Print one line to stderr: "ucckpt: <message>". */
void cmd_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The same for a wrong command line.  Returns CMD_USAGE. */
int cmd_usage(const char *command, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Report the option that getopt_long refused with `c`, ':' or '?'.  Returns
 * CMD_USAGE. */
struct option;
int cmd_bad_option(char **argv, const struct option *options, int c);

/* A flag of a command, and what it sets. */
struct cmd_flag {
	const char *name;
	bool *set;
};

#define CMD_FLAGS_MAX 8

/*
 * Parse the command line of a command whose options are all flags, `n` of them and
 * --help, and which takes `nargs` arguments, from argv[optind] on; with 0 any number
 * of them but none.  False if there is nothing left to do: `*status` is then the exit
 * code.  `expected` names the arguments.
 */
bool cmd_parse_flags(int argc, char **argv, const struct cmd_flag *flags,
		     size_t n, int nargs, const char *expected,
		     void (*print_help)(void), int *status);

/* The source that arguments mean (roots_unite); NULL, with a message, if they mean
 * none.  The caller frees it. */
char *cmd_source(char *const *args, size_t n);

/* Print text that may come from a file, as utf8_show shows it.  Returns the
 * number of characters. */
int cmd_put(const char *text);

/* Format a size, as "1.2 GiB", into `buf` and return it. */
#define CMD_SIZE_LEN 32
const char *cmd_size(uint64_t bytes, char buf[CMD_SIZE_LEN]);

/* Add an integer with all its digits; cJSON's own numbers are doubles. */
void cmd_json_add_int(struct cJSON *object, const char *key, int64_t value);

/* Print and delete `root`.  Returns CMD_OK or CMD_FAILED. */
int cmd_json_print(struct cJSON *root);

#endif
