/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STAGE0_MATCH_H
#define UCKPT_STAGE0_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dcp_blobs;
struct dcp_item;
struct dcp_model;
struct errmsg;

/* A parameter of the model's. */
struct stage0_param {
	const char *name;
	struct dcp_item *weight;
};

/* What an optimizer has under a number: the states of a parameter, or of a whole group
 * whose parameters it has end to end. */
struct stage0_entry {
	size_t group;
	const struct stage0_param *param; /* found by stage0_match */
	struct dcp_item *states; /* in order; and the master weight, if it has one */
	size_t n;
	const struct dcp_item *like; /* a tensor of its shape; NULL: there is none */
};

/*
 * Find the parameter of each entry; those without `like` may stay without one.  Entries are
 * in the optimizer's order, parameters in the model's.  -ENOTSUP if shapes do not tell which
 * is which.  Messages begin with `file`.
 */
int stage0_match(const struct stage0_param *params, size_t n,
		 struct stage0_entry *entries, size_t nentries, const char *file,
		 struct errmsg *err);

/* The same for flat groups, of `numel` elements each: set the group that owns each
 * parameter, by the parameter's number. */
int stage0_match_flat(const struct stage0_param *params, size_t n,
		      const uint64_t *numel, size_t ngroups, size_t *owners,
		      const char *file, struct errmsg *err);

/* Check that masters of 16-bit weights begin with what these were rounded from. */
int stage0_match_check(const struct dcp_model *o, struct dcp_blobs *b, const char *file,
		       struct errmsg *err);

#endif
