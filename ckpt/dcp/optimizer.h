/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_OPTIMIZER_H
#define UCKPT_DCP_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/dcp/metadata.h"

struct arena;
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

/* A state of a parameter. */
struct dcp_entry {
	const char *param; /* first: array_by_text */
	const char *field;
	struct dcp_item *item;
};

/* The optimizer of a checkpoint, if it has one.  Memory is that of an arena. */
struct dcp_optimizer {
	bool found;
	struct dcp_prefix prefix;
	const char *first; /* a parameter's name */
	struct dcp_entry *states; /* by parameter, and then in the order of the items */
	size_t nstates;
	struct dcp_optimizer_group {
		const char **names; /* of parameters */
		size_t n, cap;
		struct value *options; /* a dict of plain values, without params */
	} *groups;
	size_t ngroups;
};

/* Is it a number, a text, or a short list of such?  Nothing else of a group goes into a
 * file that a program will load. */
bool dcp_optimizer_is_option(const struct value *v);

/* Find the optimizer, and read its groups, of which Megatron-LM's has none.
 * -ENOTSUP for several optimizers, -EBADMSG, -E2BIG, -ENOMEM; errors of
 * dcp_blobs_value. */
int dcp_optimizer_find(struct dcp_optimizer *x, const struct dcp_metadata *m,
		       const struct dcp_megatron *megatron, struct dcp_blobs *b,
		       struct arena *a, const char *dir, struct errmsg *err);

/* The states of a parameter, which follow each other; their number is at `*n`. */
const struct dcp_entry *dcp_optimizer_states(const struct dcp_optimizer *x,
					     const char *param, size_t *n);

/* The state of that name, or NULL. */
struct dcp_item *dcp_optimizer_state(const struct dcp_optimizer *x, const char *param,
				     const char *field);

#endif
