/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STATETREE_IMPL_H
#define UCKPT_STATETREE_IMPL_H

#include "ckpt/base/arena.h"
#include "ckpt/states/statetree.h"

/* Operations of a kind of tree. */
struct statetree_ops {
	const char *kind;
	bool weights_alone; /* there are no optimizer states */
	/* Provide the weights that the _hf view shows, and add those that the
	 * tree lacks.  NULL: they are the same. */
	int (*take_weights)(struct statetree *t, struct errmsg *err);
	int (*states)(struct statetree *t, const char *param,
		      struct statetree_states *out, struct errmsg *err);
	int (*open_state)(struct statetree *t, const char *param,
			  const char *name, struct state *out,
			  struct errmsg *err);
	/* Add the tied names.  NULL: none are recorded */
	int (*ties)(struct statetree *t, struct errmsg *err);
	void (*close)(struct statetree *t);
};

/* The part that all kinds share.  A kind's own structure begins with it. */
struct statetree {
	const struct statetree_ops *ops;
	char *path;
	struct arena arena; /* holds the names */
	const char **names;
	size_t n, cap;
	/* Loaded on first use: sorted by name, and sorted by owner. */
	struct statetree_tie *ties, *by_owner;
	size_t nties, ties_cap;
	bool ties_known;
};

struct statetree_tie {
	const char *name, *of;
};

/* Open a tree of one kind and list its parameters; `path` is set by the
 * caller. */
int statetree_open_zero(const char *path, struct statetree **out,
			struct errmsg *err);
int statetree_open_universal(const char *path, struct statetree **out,
			     struct errmsg *err);

int statetree_open_hf(const char *path, struct statetree **out,
		      struct errmsg *err);

/* Add a parameter.  -ENOMEM, -E2BIG. */
int statetree_add(struct statetree *t, const char *name, struct errmsg *err);

/* Add `name` as another name of parameter `of`.  -ENOMEM. */
int statetree_add_tie(struct statetree *t, const char *name, const char *of,
		      struct errmsg *err);

/* Add a state.  -E2BIG. */
int statetree_add_state(struct statetree_states *s, const char *name,
			size_t len, struct errmsg *err);

/* Add the state of a .pt file; ignore other files.  -E2BIG. */
int statetree_add_file(struct statetree_states *s, const char *file,
		       struct errmsg *err);

#endif
