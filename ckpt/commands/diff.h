/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DIFF_H
#define UCKPT_DIFF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/format/tensor.h"

struct checkpoint;
struct errmsg;
struct param;
struct view;
struct state;

/* A parameter on one side. */
struct diff_entry {
	const char *name;            /* must be first: array_by_text */
	const struct param *row;     /* row with all states; NULL: none, or a tree on a disk */
	const struct param *weights; /* row with the weights that views show, if it differs from
				      * `row`; or NULL */
};

struct diff_tie {
	const char *name, *of;
};

/*
 * The parameters of a checkpoint and the states of each: rows of a table, or directories of a
 * universal checkpoint on a disk.  A Hugging Face model has weights only.  Thread-safe while
 * entries and ties do not change.
 */
struct diff_tree {
	struct uckpt *u;
	const char *kind; /* in words, such as "ZeRO checkpoint" */
	char *path;
	struct view *view;
	struct checkpoint *c; /* NULL: a universal checkpoint on a disk */
	bool model;           /* a Hugging Face model */
	struct arena arena;
	struct diff_entry *v; /* sorted by name */
	size_t n, cap;
	/* Each tie in both directions, by `name`; loaded on first use. */
	struct diff_tie *ties;
	size_t nties, ties_cap;
	struct hashtab ties_by_name;
	bool ties_known;
};

/*
 * Open a ZeRO checkpoint (the directory of a tag, or that of a run for its
 * newest tag), a universal checkpoint or a model, in the context `t->u`.  Errors are those of
 * view_open, or the system's.  Call diff_tree_close in any case.
 */
int diff_tree_open(struct diff_tree *t, const char *path, struct errmsg *err);
void diff_tree_close(struct diff_tree *t);

/*
 * Prepare `t` for a comparison with `other`.  If `other` has weights only, a ZeRO checkpoint
 * provides the weights that its _hf view shows (checkpoint_order) instead of those of its universal
 * tree: a tree of ZeRO-3 lacks buffers and frozen parameters; trees of other stages have tied names
 * as in the model, weights rounded to its type, and vocabularies without padding.  Errors as
 * checkpoint_order.
 */
int diff_tree_match(struct diff_tree *t, const struct diff_tree *other, struct errmsg *err);

/*
 * Return the entry of parameter `name` in `other` under another name, according to the ties in the
 * model states of `t`, or NULL.  `t` need not have either name.  Only the first DIFF_TIES_MAX names
 * of a parameter are tried.  Not thread-safe.
 */
#define DIFF_TIES_MAX 64

const struct diff_entry *diff_tree_tied(struct diff_tree *t, const char *name,
					const struct diff_tree *other);

/* Limits of the states of a parameter on one side, and of the length of a state's name. */
#define DIFF_STATES_MAX 16
#define DIFF_STATE_LEN 64
#define DIFF_WEIGHTS "fp32" /* the state of weights */

struct diff_states {
	char v[DIFF_STATES_MAX][DIFF_STATE_LEN];
	size_t n;
};

/* List the states of an entry.  -E2BIG, and errors of reading. */
int diff_tree_states(const struct diff_tree *t, const struct diff_entry *e, struct diff_states *out,
		     struct errmsg *err);

/* Open a state of an entry.  Close it with state_close before the tree is closed. */
int diff_tree_open_state(const struct diff_tree *t, const struct diff_entry *e, const char *name,
			 struct state *out, struct errmsg *err);

/* Finite elements are equal if |a - b| <= absolute + relative * |b|; if both are 0, their bits
 * must be equal. */
struct diff_tolerance {
	double relative, absolute;
};

/* The comparison of two tensors with the same number of elements. */
struct diff_values {
	uint64_t numel;
	uint64_t differ;         /* elements that differ */
	uint64_t first;          /* index of the first differing element */
	uint64_t odd;            /* differing elements that are infinite or NaN on either side */
	uint64_t near;           /* elements with different bits, but within the tolerance */
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

/* The name of a state, and which sides have it. */
struct diff_name {
	char name[DIFF_STATE_LEN];
	bool has[2];
};

/* A state of a parameter, on one side or both. */
struct diff_state {
	struct diff_name id;
	enum diff_kind kind;
	bool counts; /* counts as a difference */
	enum dtype dtype[2];
	struct diff_values values; /* if compared */
	char *shape[2];            /* DIFF_SHAPE: both shapes, as "[3, 4]" */
	char *place;               /* DIFF_VALUES: indices of the first
				    * difference, as "[0, 2]" */
};

struct diff_param {
	const char *name;
	bool has[2];
	/* The entries of both sides; the side without this name may store it under another,
	 * `tied`. */
	const struct diff_entry *in[2];
	const char *tied;
	struct diff_state *states; /* if both sides have the parameter */
	size_t nstates, cap;
};

struct diff {
	struct diff_tree tree[2];
	bool strict; /* notes count as differences */
	struct diff_tolerance tolerance;
	struct progress progress; /* of comparing, in bytes */
	struct diff_param *params;
	size_t nparams;

	/* Which sides have any state of a name, for the first names. */
	struct diff_name names[DIFF_STATES_MAX];
	size_t nnames;
	uint64_t only[2];          /* parameters that only one side has */
	uint64_t tied[2];          /* parameters that one side has only under a tied
			   * name */
	uint64_t common;           /* parameters that both have, ... */
	uint64_t states, elements; /* ... their states and elements */
	uint64_t differ;           /* states that count as differences */
	uint64_t types;            /* equal states of different types */
	struct diff_values worst;
	bool equal;
};

/* Compare two open states.  Errors are those of reading, and -EINTR. */
int diff_compare(const struct state *a, const struct state *b,
		 const struct diff_tolerance *tolerance, struct diff_state *out,
		 struct progress *progress, struct errmsg *err);

/* Report to the caller of the library: the text has the worst parameters, JSON all different
 * ones; with UCKPT_ALL, both have every comparison.  -ENOMEM. */
int diff_report(struct diff *d, unsigned flags, struct errmsg *err);

#endif
