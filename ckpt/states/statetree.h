/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STATETREE_H
#define UCKPT_STATETREE_H

#include <stdbool.h>
#include <stddef.h>

struct errmsg;
struct state;

/*
 * The parameters of a checkpoint and the states of each: in the shards of a
 * ZeRO checkpoint, in the files of a universal checkpoint, or in those of a
 * Hugging Face model, which has weights alone.  Thread-safe after
 * statetree_open.
 */
struct statetree;

/*
 * Open a ZeRO checkpoint (the directory of a tag, or that of a run for its
 * newest tag), a universal checkpoint or a model.  Errors are those of
 * plan_open, plan_check and hfdir_open, or the system's.  Call statetree_close
 * after success.
 */
int statetree_open(const char *path, struct statetree **out, struct errmsg *err);
void statetree_close(struct statetree *t);

/*
 * Prepare `t` for a comparison with `other`.  If `other` has weights alone, a
 * ZeRO checkpoint provides the weights that its _hf view shows (weights.h)
 * instead of those of its universal tree, which leaves some out and cuts or
 * rounds others.  Errors as weights_load.
 */
int statetree_match(struct statetree *t, const struct statetree *other,
		    struct errmsg *err);

/* The kind in words, such as "ZeRO checkpoint", and the directory. */
const char *statetree_kind(const struct statetree *t);
const char *statetree_path(const struct statetree *t);

/* The parameters' names, sorted as strcmp orders them. */
size_t statetree_count(const struct statetree *t);
const char *statetree_name(const struct statetree *t, size_t i);
bool statetree_has(const struct statetree *t, const char *name);

/*
 * Return a name that parameter `name` has in `other` according to the ties in
 * the model states of `t`, or NULL.  `t` need not have either name.  Only the
 * first STATETREE_NAMES_MAX names of a parameter are tried.  Not thread-safe.
 */
#define STATETREE_NAMES_MAX 64

const char *statetree_tied(struct statetree *t, const char *name,
			   const struct statetree *other);

/* Names of states without duplicates, in the order of
 * statetree_compare_states. */
#define STATETREE_STATES_MAX 16
#define STATETREE_STATE_LEN 64

struct statetree_states {
	unsigned n;
	char name[STATETREE_STATES_MAX][STATETREE_STATE_LEN];
};

/* Order names of states for qsort: fp32 first, the others as strcmp. */
int statetree_compare_states(const char *a, const char *b);

/* List the states of a parameter.  Returns -E2BIG beyond the limits above, or
 * errors of reading. */
int statetree_states(struct statetree *t, const char *param,
		     struct statetree_states *out, struct errmsg *err);

/* Open a state.  Close it with state_close before the tree is closed. */
int statetree_open_state(struct statetree *t, const char *param,
			 const char *name, struct state *out,
			 struct errmsg *err);

#endif
