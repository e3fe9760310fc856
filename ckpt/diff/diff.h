/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CMD_DIFF_H
#define UCKPT_CMD_DIFF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/states/statetree.h"
#include "ckpt/tensor/tensor.h"

struct errmsg;
struct state;

/* Two tensors of as many elements. */
struct diff_values {
	uint64_t numel;
	uint64_t differ;         /* elements that are not the same */
	uint64_t first;          /* the first of them */
	uint64_t odd;            /* of them, those that are no finite numbers */
	double max_abs, max_rel; /* of the others */
};

enum diff_kind {
	DIFF_NONE,   /* the values are the same */
	DIFF_VALUES, /* they are not */
	DIFF_SHAPE,
	DIFF_TYPE,   /* of which values cannot be compared */
	DIFF_ONLY_A, /* the state is not there in B */
	DIFF_ONLY_B,
};

/* A state of a parameter that both sides have. */
struct diff_state {
	char name[STATETREE_STATE_LEN];
	enum diff_kind kind;
	bool counts; /* it is a difference; filled in by diff_judge */
	enum dtype dtype[2];
	struct diff_values values; /* of the first two kinds */
	char *shape[2];            /* of DIFF_SHAPE: "[3, 4]" */
	char *place;               /* of DIFF_VALUES: of the first; "[0, 2]" */
};

struct diff_param {
	const char *name;
	bool has[2];
	const char *tied; /* or NULL: what the side without it has of it, a
			   * parameter that this one is tied to */
	struct diff_state *states; /* if both have it */
	size_t nstates;
};

/* Which sides have states of a name at all; of so many names. */
#define DIFF_NAMES_MAX 16

struct diff_name {
	char name[STATETREE_STATE_LEN];
	bool has[2];
};

struct diff {
	struct statetree *tree[2];
	bool strict; /* what diff_print_text calls a note is a difference */
	struct diff_param *params;
	size_t nparams;

	/* What diff_judge finds out: */
	struct diff_name names[DIFF_NAMES_MAX];
	size_t nnames;
	uint64_t only[2]; /* parameters that one side has */
	uint64_t tied[2]; /* that the side has as what they are tied to */
	uint64_t common;  /* those that both have ... */
	uint64_t states, elements; /* ... and what of them is compared */
	uint64_t differ;           /* states that count */
	uint64_t types; /* states of the same values, in another type */
	struct diff_values worst;
	bool equal;
};

/* How a side calls it; NULL if it does not have it. */
static inline const char *diff_name_in(const struct diff_param *p, unsigned side)
{
	return p->has[side] ? p->name : p->tied;
}

/* Put together what comparing all parameters has shown. */
void diff_judge(struct diff *d);

/* Compare two opened states.  Errors are those of reading. */
int diff_compare(const struct state *a, const struct state *b,
		 struct diff_state *out, struct errmsg *err);

/* Tell what counts, or with `all` what was compared. */
void diff_print_text(const struct diff *d, bool all);
int diff_print_json(const struct diff *d, bool all);

#endif
