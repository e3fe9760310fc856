/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_OPTIMIZER_H
#define UCKPT_DCP_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/hashtab.h"
#include "ckpt/dcp/metadata.h"

struct dcp_blobs;
struct dcp_megatron;
struct errmsg;
struct value;

/* The first elements of an item's path. */
struct dcp_prefix {
	const struct dcp_item *item;
	unsigned depth;
};

/* Does the item's path begin so, and go on? */
bool dcp_prefix_has(const struct dcp_prefix *p, const struct dcp_item *t);

/* A field of a parameter, or of a group. */
struct dcp_entry {
	struct dcp_item *item;
	const char *name; /* of the parameter, or number of the group */
	const char *field;
	bool of_group; /* of param_groups */
	bool flat;     /* of the flattened form: names stand for groups, too */
};

/* The optimizer of a checkpoint, if it has one. */
struct dcp_optimizer {
	bool found;
	struct dcp_prefix prefix;
	const char *first; /* a parameter's name */
	struct dcp_entry *entries; /* in the order of the items */
	size_t n;
	struct hashtab by_name; /* entries of states */
	struct dcp_optimizer_group {
		const char **names; /* of parameters */
		size_t n;
		struct value *options; /* a dict of plain values, without params */
	} *groups;
	size_t ngroups;
};

/* Is it a number, a text, or a short list of such?  Nothing else of a group goes into a
 * file that a program will load. */
bool dcp_optimizer_is_option(const struct value *v);

/* Find the optimizer, and read its groups; of Megatron-LM's, `megatron` has the options.
 * Memory comes from `a`, or is freed by dcp_optimizer_done, also after an error.  -ENOTSUP
 * for several optimizers. */
int dcp_optimizer_find(struct dcp_optimizer *x, const struct dcp_metadata *m,
		       const struct dcp_megatron *megatron, struct dcp_blobs *b,
		       struct arena *a, const char *dir, struct errmsg *err);
void dcp_optimizer_done(struct dcp_optimizer *x);

/* The next state of a parameter from `*pos` on, 0 at first, or the one of that name; NULL
 * if there is none. */
const struct dcp_entry *dcp_optimizer_next(const struct dcp_optimizer *x,
					   const char *param, const char *field,
					   size_t *pos);

#endif
