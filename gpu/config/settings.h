/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SETTINGS_H
#define UCTRAIN_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/config/config.h"

struct errmsg;

/*
 * The settings of uctrain as a table: the flag, the key of DeepSpeed's configuration,
 * the type, where the value is stored, its range and default, and the line of --help.
 */
struct choice {
	const char *name; /* NULL: the end */
	int value;
};

enum setting_kind {
	SETTING_GROUP, /* heads those that follow in --help */
	SETTING_UINT,  /* unsigned */
	SETTING_U64,
	SETTING_REAL, /* double */
	SETTING_FLOAT,
	SETTING_BETAS, /* two doubles, "0.9,0.999" */
	SETTING_CHOICE,
	SETTING_CHOICE_OR_FIRST, /* the first choice without a value */
	SETTING_EXACT_CHOICE,    /* one that DeepSpeed distinguishes by case */
	SETTING_TEXT,
	SETTING_NAME, /* text that can be the name of a file */
	SETTING_ON,   /* bool; a flag without a value */
	/* Flags with their own handling. */
	SETTING_MODEL,
	SETTING_RESUME,
	SETTING_JSON,
	SETTING_HELP,
	SETTING_VERSION,
};

struct setting {
	const char *flag; /* NULL: none */
	const char *key;  /* a path of names joined by dots; NULL: none */
	enum setting_kind kind;
	size_t at, size; /* of the value in struct config; size 0: it is not
			  * stored as it is */
	double min, max; /* of numbers */
	const struct choice *choices;
	const char *initial; /* the default, as a flag's value; NULL: 0 */
	const char *help;    /* the value's placeholder, a tab, and the
			      * description; NULL without a flag */
};

#define SETTINGS 89
extern const struct setting settings[SETTINGS];

bool setting_takes_value(const struct setting *s);

/* Store a value in the configuration; flags with their own handling are left
 * alone.  `text` is NULL if the flag has no value. -EINVAL with the flag, the
 * value, and what is allowed. */
int setting_set(struct config *c, const struct setting *s, const char *text,
		struct errmsg *err);

/* Store a number, a choice or a truth value. */
void setting_store(struct config *c, const struct setting *s, double value);

/* Is it a number that the setting can have?  If not, `want` says which. */
bool setting_allows(const struct setting *s, double value, struct errmsg *want);

/* Set a value of each setting that has a default. */
int settings_init(struct config *c, struct errmsg *err);

/* The owned string of a setting; NULL if its value is none. */
char **setting_text(struct config *c, const struct setting *s);

/* Replace an owned string. */
int setting_set_text(char **out, const char *text, struct errmsg *err);

/* A number that differs where the values of flags differ, but for the names of files
 * and directories, which may be other ones on another machine: of these it counts
 * whether they are given. */
uint64_t settings_digest(struct config *c);

/* Print a line for each flag to stdout, in groups. */
void settings_print(void);

#endif
