/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DIFF_TREE_H
#define UCKPT_DIFF_TREE_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/arena.h"
#include "ckpt/dirs/hfdir.h"

struct errmsg;
struct plan;
struct state;
struct weights;

/* The name of a parameter or a weight. */
struct diff_entry {
	const char *name; /* first: array_by_text */
	size_t weight; /* index among the weights; DIFF_NO_WEIGHT: not one */
};

#define DIFF_NO_WEIGHT ((size_t)-1)

struct diff_tie {
	const char *name, *of;
};

/*
 * The parameters of a checkpoint and the states of each: in the shards of a
 * ZeRO checkpoint, in the files of a universal checkpoint, or in those of a
 * Hugging Face model, which has weights alone.  Thread-safe while entries and
 * ties do not change.
 */
struct diff_tree {
	const char *kind; /* in words, such as "ZeRO checkpoint" */
	char *path;
	struct plan *plan;   /* of a ZeRO checkpoint, or NULL */
	struct hfdir *model; /* of Hugging Face, or NULL */
	/* Those of a ZeRO checkpoint, if it provides them instead of its tree's
	 * fp32; see diff_tree_match. */
	const struct weights *weights;
	struct arena arena;
	struct diff_entry *v; /* sorted by name */
	size_t n, cap;
	/* Each tie in both directions, sorted by `name`; loaded on first use. */
	struct diff_tie *ties;
	size_t nties, ties_cap;
	bool ties_known;
};

/*
 * Open a ZeRO checkpoint (the directory of a tag, or that of a run for its
 * newest tag), a universal checkpoint or a model.  Errors are those of
 * plan_open, plan_check and hfdir_open, or the system's.  Call diff_tree_close
 * in any case.
 */
int diff_tree_open(struct diff_tree *t, const char *path, struct errmsg *err);
void diff_tree_close(struct diff_tree *t);

/*
 * Prepare `t` for a comparison with `other`.  If `other` has weights alone, a
 * ZeRO checkpoint provides the weights that its _hf view shows (weights.h)
 * instead of those of its universal tree: a tree of ZeRO-3 has no buffers and
 * frozen parameters, and trees of other stages have tied names as the model
 * keeps them, rounded to its type, and vocabularies without padding.  Errors as
 * weights_load.
 */
int diff_tree_match(struct diff_tree *t, const struct diff_tree *other,
		    struct errmsg *err);

/*
 * Return a name that parameter `name` has in `other` according to the ties in
 * the model states of `t`, or NULL.  `t` need not have either name.  Only the
 * first DIFF_TIES_MAX names of a parameter are tried.  Not thread-safe.
 */
#define DIFF_TIES_MAX 64

const char *diff_tree_tied(struct diff_tree *t, const char *name,
			   const struct diff_tree *other);

/* Names of states without duplicates, in the order of diff_compare_states. */
#define DIFF_STATES_MAX 16
#define DIFF_STATE_LEN 64

struct diff_states {
	unsigned n;
	char name[DIFF_STATES_MAX][DIFF_STATE_LEN];
};

/* Order names of states: fp32 first, the others as strcmp. */
int diff_compare_states(const char *a, const char *b);

/* List the states of a parameter.  Returns -E2BIG beyond the limits above, or
 * errors of reading. */
int diff_tree_states(struct diff_tree *t, const char *param,
		     struct diff_states *out, struct errmsg *err);

/* Open a state.  Close it with state_close before the tree is closed. */
int diff_tree_open_state(struct diff_tree *t, const char *param,
			 const char *name, struct state *out,
			 struct errmsg *err);

#endif
