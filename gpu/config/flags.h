/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_FLAGS_H
#define UCTRAIN_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/config/config.h"

struct errmsg;

/* The flags of uctrain as a table: how a value is checked, where it is stored,
 * and its line of --help. */
struct choice {
	const char *name; /* NULL: the end */
	int value;
};

enum flag_kind {
	FLAG_UINT, /* unsigned */
	FLAG_U64,
	FLAG_REAL, /* double */
	FLAG_FLOAT,
	FLAG_BETAS, /* two doubles, "0.9,0.999" */
	FLAG_CHOICE,
	FLAG_CHOICE_OR_FIRST, /* the first choice without a value */
	FLAG_TEXT,
	FLAG_NAME, /* text that can be the name of a file */
	FLAG_ON,
	/* Flags with their own handling. */
	FLAG_MODEL,
	FLAG_RESUME,
	FLAG_JSON,
	FLAG_HELP,
	FLAG_VERSION,
};

struct flag {
	const char *name;
	enum flag_kind kind;
	size_t at;       /* of the value, in struct config */
	double min, max; /* of numbers */
	const struct choice *choices;
	const char *help; /* the value's placeholder, a tab, and the
			   * description */
};

/* The types of a model. */
extern const struct choice flag_dtypes[];

#define FLAGS 61
extern const struct flag flags[FLAGS];

bool flag_takes_value(const struct flag *f);

/* Store a value in the configuration; flags with their own handling are left
 * alone.  `text` is NULL if the flag has no value. -EINVAL with the flag, the
 * value, and what is allowed. */
int flag_set(struct config *c, const struct flag *f, const char *text,
	     struct errmsg *err);

/* Replace an owned string. */
int flag_set_text(char **out, const char *text, struct errmsg *err);

/* A number that differs where the values of flags differ, but for the names of files
 * and directories, which may be other ones on another machine: of these it counts
 * whether they are given. */
uint64_t flags_digest(const struct config *c);

/* Print a line for each flag to stdout. */
void flags_print(void);

#endif
