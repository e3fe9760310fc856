/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DIFF_H
#define UCKPT_DIFF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/diff/diff_tree.h"
#include "ckpt/tensor/tensor.h"

struct errmsg;
struct state;

int cmd_diff(int argc, char **argv);

/* The comparison of two tensors with the same number of elements. */
struct diff_values {
	uint64_t numel;
	uint64_t differ;         /* elements that differ */
	uint64_t first;          /* index of the first of them */
	uint64_t odd;            /* differing elements of which one is infinite
				  * or NaN */
	double max_abs, max_rel; /* over the other differing elements */
};

enum diff_kind {
	DIFF_NONE,   /* equal values */
	DIFF_VALUES, /* different values */
	DIFF_SHAPE,
	DIFF_TYPE,   /* types whose values cannot be compared */
	DIFF_ONLY_A, /* B lacks the state */
	DIFF_ONLY_B,
};

/* A state of a parameter, on one side or both. */
struct diff_state {
	char name[DIFF_STATE_LEN];
	enum diff_kind kind;
	bool counts; /* counts as a difference; set by diff_judge */
	enum dtype dtype[2];
	struct diff_values values; /* if compared */
	char *shape[2];            /* DIFF_SHAPE: both shapes, as "[3, 4]" */
	char *place;               /* DIFF_VALUES: indices of the first
				    * difference, as "[0, 2]" */
};

struct diff_param {
	const char *name;
	bool has[2];
	const char *tied; /* the name under which the side without this one
			   * stores it; or NULL */
	struct diff_state *states; /* if both sides have the parameter */
	size_t nstates;
};

/* Which sides have any state of a name, for the first DIFF_NAMES_MAX names. */
#define DIFF_NAMES_MAX 16

struct diff_name {
	char name[DIFF_STATE_LEN];
	bool has[2];
};

struct diff {
	struct diff_tree tree[2];
	bool strict; /* notes count as differences */
	struct diff_param *params;
	size_t nparams;

	/* Set by diff_judge: */
	struct diff_name names[DIFF_NAMES_MAX];
	size_t nnames;
	uint64_t only[2]; /* parameters that only one side has */
	uint64_t tied[2]; /* parameters that one side has only under a tied
			   * name */
	uint64_t common;  /* parameters that both have, ... */
	uint64_t states, elements; /* ... their states and elements */
	uint64_t differ;           /* states that count as differences */
	uint64_t types; /* equal states of different types */
	struct diff_values worst;
	bool equal;
};

/* The parameter's name on a side; NULL if the side lacks it. */
static inline const char *diff_name_in(const struct diff_param *p, unsigned side)
{
	return p->has[side] ? p->name : p->tied;
}

/* Sum up the comparisons of all parameters and set `equal`. */
void diff_judge(struct diff *d);

/* Compare two open states.  Errors are those of reading. */
int diff_compare(const struct state *a, const struct state *b,
		 struct diff_state *out, struct errmsg *err);

/* Print the differences, or with `all` every comparison.  diff_print_json
 * returns an exit code. */
void diff_print_text(const struct diff *d, bool all);
int diff_print_json(const struct diff *d, bool all);

#endif
