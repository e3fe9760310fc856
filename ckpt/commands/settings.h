/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SETTINGS_H
#define UCKPT_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/commands/share.h"
#include "ckpt/table/user_rules.h"
#include "ckpt/tree/tree.h"

/* A context's settings by uckpt_set, except those for servers (context.h). */
struct settings {
	struct tree_options tree; /* `source` is set once it is open; its rules are `rules` */
	struct user_rules rules;
	char *hf_config;    /* of tree.view */
	uint64_t readahead; /* memory for read-ahead, in bytes; 0: none */
	/* Options of convert: */
	bool lenient;                         /* accept patterns that match no parameter */
	unsigned read_threads, write_threads; /* 0: one per processor */
	struct share share;                   /* of convert, extract and check */
	double rtol, atol;                    /* of diff: see struct diff_tolerance */
};

/* Return the settings of a context, which owns them; NULL when memory runs out. */
struct settings *settings_of(struct uckpt *u);

/* As uckpt_set, for a comma-separated list with only options about servers. */
int settings_set_servers(struct uckpt *u, const char *list, struct errmsg *err);

/* Free the settings, if `u` has some. */
void settings_free(struct uckpt *u);

/* Check that the options about the files shown are compatible.  -EINVAL with a message. */
int settings_validate(struct settings *s, struct errmsg *err);

#endif
