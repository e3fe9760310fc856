/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CONFIG_IMPL_H
#define UCTRAIN_CONFIG_IMPL_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/config/config.h"

struct errmsg;

/* Shared by the files of gpu/config. */

/* The flag that names a DeepSpeed configuration, also for messages. */
#define CONFIG_JSON_FLAG "deepspeed_config"

/* The limit of sizes that are multiplied with each other. */
#define CONFIG_SIZE_LIMIT (1u << 22)

/*
 * The settings of uctrain as a table: the flag, the key of DeepSpeed's configuration, the type,
 * where the value is stored, its range and default, and the line of --help.
 */
struct choice {
	const char *name; /* NULL ends the list */
	int value;
};

enum setting_kind {
	SETTING_GROUP, /* heads the following settings in --help */
	SETTING_UINT,  /* unsigned */
	SETTING_U64,
	SETTING_REAL, /* double */
	SETTING_FLOAT,
	SETTING_BETAS,  /* two doubles, "0.9,0.999" */
	SETTING_CHOICE, /* a flag without a value means the first choice */
	SETTING_CHOICE_ANY_CASE,
	SETTING_TEXT,
	SETTING_NAME, /* text that can be the name of a file */
	SETTING_ON,   /* bool; a flag without a value */
	/* Settings with their own code: */
	SETTING_MODEL,
	SETTING_RESUME,
	SETTING_JSON,
	SETTING_HELP,
	SETTING_VERSION,
};

struct setting {
	const char *flag; /* NULL: none */
	const char *key;  /* path of names joined by dots; NULL: none */
	enum setting_kind kind;
	size_t at, size; /* of the value in struct config */
	double min, max; /* range of numbers */
	const struct choice *choices;
	const char *initial; /* the default, as a flag's value; NULL: 0 */
	/* The value's placeholder ("[=...]" if it is optional), a tab, and the description without
	 * the names of choices.  A leading + marks the most used flags, which fit a screen.  NULL
	 * without a flag. */
	const char *help;
};

#define SETTINGS 89
extern const struct setting settings[SETTINGS];

bool setting_takes_value(const struct setting *s);
bool setting_value_is_optional(const struct setting *s);

/* Store a value in the configuration; settings with their own code are left alone.  `text` is NULL
 * if the flag has no value.  -EINVAL: "WHERE must be", and what is allowed. */
int setting_set(struct config *c, const struct setting *s, const char *where, const char *text,
		struct errmsg *err);

/* Set the defaults of all settings. */
int settings_init(struct config *c, struct errmsg *err);

/* Return the owned string of a setting; NULL for other kinds. */
char **setting_text(struct config *c, const struct setting *s);

/* Replace an owned string. */
int setting_set_text(char **out, const char *text, struct errmsg *err);

/* Print a line for each flag to stdout: the most used ones, or all, in groups. */
void settings_print(bool all);

/*
 * Apply the DeepSpeed configuration in the file `path`, and store its text in c->deepspeed_json.
 * Batch sizes that it leaves to be derived stay 0. -EINVAL for invalid JSON, with line and
 * column; unknown keys are reported on stderr if `verbose`.
 */
int config_read_json(struct config *c, const char *path, bool verbose, struct errmsg *err);

/* Derive values from others for `ranks` ranks, and refuse invalid combinations. */
int config_settle(struct config *c, unsigned ranks, struct errmsg *err);

#endif
