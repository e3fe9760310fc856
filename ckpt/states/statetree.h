/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STATETREE_H
#define UCKPT_STATETREE_H

#include <stdbool.h>
#include <stddef.h>

struct errmsg;
struct state;

/*
 * The parameters of a checkpoint and the states of each, wherever they are: in
 * the shards of a ZeRO checkpoint, in the files of a universal one, or, weights
 * alone, in those of a Hugging Face model.  Thread-safe after statetree_open.
 */
struct statetree;

/*
 * Open a ZeRO checkpoint (a tag's directory, or a run's: then its newest tag), a
 * universal one, or a model.  Errors are those of plan_open, plan_check and
 * hfdir_open, or what the system said.
 */
int statetree_open(const char *path, struct statetree **out, struct errmsg *err);
void statetree_close(struct statetree *t);

/*
 * `t` will be compared with `other`: beside weights alone, those of a ZeRO
 * checkpoint are the ones that its views have (weights.h), not the ones of its
 * universal tree, which may lack some, and has others cut or rounded.  Errors as
 * weights_load.
 */
int statetree_match(struct statetree *t, const struct statetree *other,
		    struct errmsg *err);

/* What it is, as "ZeRO checkpoint", and its directory. */
const char *statetree_kind(const struct statetree *t);
const char *statetree_path(const struct statetree *t);

/* The parameters' names, sorted by their bytes. */
size_t statetree_count(const struct statetree *t);
const char *statetree_name(const struct statetree *t, size_t i);
bool statetree_has(const struct statetree *t, const char *name);

/*
 * Another name of the parameter `name` that `other` has, as the model states of
 * `t` tell, whether or not `t` has either; NULL if they do not.  Of a parameter
 * with more names than that, the first are known.  Not thread-safe.
 */
#define STATETREE_NAMES_MAX 64

const char *statetree_tied(struct statetree *t, const char *name,
			   const struct statetree *other);

/* Names of states, without duplicates: fp32 first, the others sorted. */
#define STATETREE_STATES_MAX 16
#define STATETREE_STATE_LEN 64

struct statetree_states {
	unsigned n;
	char name[STATETREE_STATES_MAX][STATETREE_STATE_LEN];
};

/* The order of states. */
int statetree_compare_states(const char *a, const char *b);

/* What there is of a parameter.  -E2BIG beyond the limits above, or errors of
 * reading. */
int statetree_states(struct statetree *t, const char *param,
		     struct statetree_states *out, struct errmsg *err);

/* Open one of them.  It must be closed before the tree. */
int statetree_open_state(struct statetree *t, const char *param,
			 const char *name, struct state *out,
			 struct errmsg *err);

#endif
