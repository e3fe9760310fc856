/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SETTINGS_H
#define UCKPT_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/commands/share.h"
#include "ckpt/table/user_rules.h"
#include "ckpt/tree/tree.h"

/* What uckpt_set has set in a context, besides how servers are asked (context.h). */
struct settings {
	struct tree_options tree; /* `source` once it is open; its rules are `rules` */
	struct user_rules rules;
	char *hf_config;    /* of tree.plan */
	uint64_t readahead; /* memory for what is read ahead, in bytes; 0: nothing is */
	/* Of convert: */
	bool lenient;                         /* accept patterns that match no parameter */
	unsigned read_threads, write_threads; /* 0: one per processor */
	struct share share;                   /* of convert, extract and check */
	double rtol, atol;                    /* of diff: see struct diff_tolerance */
};

/* The settings of a context, which owns them; NULL when memory runs out. */
struct settings *settings_of(struct uckpt *u);

/* As uckpt_set, for a list with commas of options about servers alone. */
int settings_set_servers(struct uckpt *u, const char *list, struct errmsg *err);

/* Free them, unless `u` has none. */
void settings_free(struct uckpt *u);

/* Check together those that say what is shown.  -EINVAL with a message. */
int settings_validate(struct settings *s, struct errmsg *err);

#endif
