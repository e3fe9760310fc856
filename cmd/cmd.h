/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCCKPT_CMD_H
#define UCCKPT_CMD_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/uckpt.h"

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

int cmd_info(struct uckpt *u, int argc, char **argv);
int cmd_check(struct uckpt *u, int argc, char **argv);
int cmd_diff(struct uckpt *u, int argc, char **argv);
int cmd_ls(struct uckpt *u, int argc, char **argv);
int cmd_cat(struct uckpt *u, int argc, char **argv);
int cmd_extract(struct uckpt *u, int argc, char **argv);
int cmd_convert(struct uckpt *u, int argc, char **argv);
int cmd_pack(struct uckpt *u, int argc, char **argv);
int cmd_unpack(struct uckpt *u, int argc, char **argv);
int cmd_extents(struct uckpt *u, int argc, char **argv);

/* Messages of the library go to the terminal, and its reports to standard output.  `arg` is not
 * used. */
extern const struct uckpt_calls cmd_calls;

/* Return the exit code of a command that reports: `rc`, or after an error print its message and
 * return `failed`. */
int cmd_exit(int rc, const struct uckpt_error *err, enum cmd_exit failed);

/* Print one line to stderr: "ucckpt: <message>". */
void cmd_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The same for a wrong command line.  Returns CMD_USAGE. */
int cmd_usage(const char *command, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * An option of a command, with at most one of `flags`, `text` and `set`; with none of them the
 * option has no effect, since its behaviour is the default.
 */
struct cmd_option {
	const char *name; /* without "--"; a second row with the same name is only for the help */
	char letter;       /* of its short form, or 0 */
	const char *value; /* name of its value in the help; NULL: it takes none */
	const char *help;  /* help text, in lines */
	unsigned *flags, bit; /* `bit` is set in `flags` */
	const char **text;
	const char *set; /* the library's name for it (uckpt_set) */
};

/* For commands whose work several processes can share. */
#define CMD_PART                                                                     \
	{ "part", 0, "I/N", "do part I of N, of processes that share the work; or auto, under\n" \
			    "srun or mpirun", .set = "part" }

struct cmd_syntax {
	const char *usage; /* lines of the help before and after the options */
	const char *ending;               /* may be NULL */
	const struct cmd_option *options; /* --help is added */
	size_t n;
	int nargs;        /* arguments; 0: one or more; -1: any number */
	const char *args; /* name of the arguments in the help; NULL if nargs is -1 */
};

#define CMD_OPTIONS_MAX 32

/* Parse a command line; its arguments are argv[optind] and those that follow.  False if the
 * command must end with the exit code `*status`. */
bool cmd_parse(struct uckpt *u, int argc, char **argv,
	       const struct cmd_syntax *syntax, int *status);

/* Print text that may come from a file, as utf8_show shows it. */
void cmd_put(const char *text);

#endif
