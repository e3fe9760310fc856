/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CMD_H
#define UCKPT_CMD_H

#include <stdint.h>

struct cJSON;

/*
 * The commands of ucckpt.  Each is a main of its own: `argv[0]` is its name,
 * it may print, and returns an exit code.
 */
enum cmd_exit {
	CMD_OK = 0,
	CMD_FAILED = 1, /* it could not be done; or, a checkpoint is damaged */
	CMD_USAGE = 2,
	/* diff's are those of diff(1). */
	CMD_DIFFER = 1,
	CMD_TROUBLE = 2,
};

int cmd_info(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_extents(int argc, char **argv);
int cmd_diff(int argc, char **argv);

/* --- what they share ------------------------------------------------------ */

/* One line on stderr: "ucckpt: <message>". */
void cmd_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The same for a command line that is wrong; returns CMD_USAGE. */
int cmd_usage(const char *command, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* What getopt_long has just refused, `c` being ':' or '?'. */
int cmd_bad_option(char **argv, int c);

/* Text out of a file, control characters neutralised.  Returns columns. */
int cmd_put(const char *text);

/* "1.2 GiB" */
#define CMD_SIZE_LEN 32
const char *cmd_size(uint64_t bytes, char buf[CMD_SIZE_LEN]);

/* JSON numbers are floating point: this one keeps all digits. */
void cmd_json_add_int(struct cJSON *object, const char *key, int64_t value);

/* Print and delete `root`; returns CMD_OK or CMD_FAILED. */
int cmd_json_print(struct cJSON *root);

#endif
