/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CONFIG_IMPL_H
#define UCTRAIN_CONFIG_IMPL_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/config/config.h"

struct errmsg;

/* Shared by the files of config. */

/* The flag that names a DeepSpeed configuration, also for messages. */
#define CONFIG_JSON_FLAG "deepspeed_config"

/* Sizes that are multiplied with each other and must not overflow. */
#define CONFIG_SIZE_LIMIT (1u << 22)

/*
 * The settings of uctrain as a table: the flag, the key of DeepSpeed's configuration, the type,
 * where the value is stored, its range and default, and the line of --help.
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
	SETTING_BETAS,  /* two doubles, "0.9,0.999" */
	SETTING_CHOICE, /* the first one for a flag without a value */
	SETTING_CHOICE_ANY_CASE,
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
	size_t at, size; /* of the value in struct config */
	double min, max; /* of numbers */
	const struct choice *choices;
	const char *initial; /* the default, as a flag's value; NULL: 0 */
	/* The value's placeholder, "[=...]" if it may be left out, a tab, and the description,
	 * without the names of choices; before them + if the flag is one of those that are
	 * needed most, which fit a screen.  NULL without a flag. */
	const char *help;
};

#define SETTINGS 89
extern const struct setting settings[SETTINGS];

bool setting_takes_value(const struct setting *s);
bool setting_value_is_optional(const struct setting *s);

/* Store a value in the configuration; flags with their own handling are left alone.  `text` is
 * NULL if the flag has no value. -EINVAL: "WHERE must be", and what is allowed. */
int setting_set(struct config *c, const struct setting *s, const char *where, const char *text,
		struct errmsg *err);

/* Set a value of each setting that has a default. */
int settings_init(struct config *c, struct errmsg *err);

/* The owned string of a setting; NULL if its value is none. */
char **setting_text(struct config *c, const struct setting *s);

/* Replace an owned string. */
int setting_set_text(char **out, const char *text, struct errmsg *err);

/* Print a line for each flag to stdout: for those that are needed most, or for all, in groups. */
void settings_print(bool all);

/*
 * Apply the DeepSpeed configuration in the file `path`, and store its text in c->deepspeed_json.
 * Batch sizes that it leaves to be derived stay 0. -EINVAL for invalid JSON, with line and
 * column; unknown keys are reported on stderr if `verbose`.
 */
int config_read_json(struct config *c, const char *path, bool verbose, struct errmsg *err);

/* Set what follows from other values on `ranks` ranks, and refuse what does not go together. */
int config_settle(struct config *c, unsigned ranks, struct errmsg *err);

#endif
