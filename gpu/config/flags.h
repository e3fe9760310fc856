/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_FLAGS_H
#define UCTRAIN_FLAGS_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/config/config.h"

struct errmsg;

/*
 * The flags of uctrain as a table: how a value is checked, where it goes, and
 * what --help says of it.
 */
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
	FLAG_TEXT,
	FLAG_NAME, /* a text that can be the name of a file */
	FLAG_ON,
	/* Those with a meaning of their own. */
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
	const char *help; /* what a value is called, a tab, and the meaning */
};

#define FLAGS 46
extern const struct flag flags[FLAGS];

bool flag_takes_value(const struct flag *f);

/* Put a value where it belongs; flags with a meaning of their own are left
 * alone.  `text` is NULL where a flag has none.  -EINVAL names the flag, the
 * value, and what it must be. */
int flag_set(struct config *c, const struct flag *f, const char *text,
	     struct errmsg *err);

/* Replace a string that is owned. */
int flag_set_text(char **out, const char *text, struct errmsg *err);

/* A line for each flag, on stdout. */
void flags_print(void);

#endif
