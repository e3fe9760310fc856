/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STATETREE_IMPL_H
#define UCKPT_STATETREE_IMPL_H

#include "ckpt/base/arena.h"
#include "ckpt/states/statetree.h"

/* A kind of tree. */
struct statetree_ops {
	const char *kind;
	bool weights_alone; /* no other states */
	/* Have the weights as views have them, and add those that are not
	 * there; NULL: they are. */
	int (*take_weights)(struct statetree *t, struct errmsg *err);
	int (*states)(struct statetree *t, const char *param,
		      struct statetree_states *out, struct errmsg *err);
	int (*open_state)(struct statetree *t, const char *param,
			  const char *name, struct state *out,
			  struct errmsg *err);
	/* Add what is tied; NULL: nothing tells. */
	int (*ties)(struct statetree *t, struct errmsg *err);
	void (*close)(struct statetree *t);
};

/* What trees of all kinds have; a kind's own structure begins with it. */
struct statetree {
	const struct statetree_ops *ops;
	char *path;
	struct arena arena; /* has the names */
	const char **names;
	size_t n, cap;
	/* Once somebody has asked for them: by their names, and the same by
	 * what they are names of. */
	struct statetree_tie *ties, *by_owner;
	size_t nties, ties_cap;
	bool ties_known;
};

struct statetree_tie {
	const char *name, *of;
};

/* Make a kind's tree, without path, and list its parameters. */
int statetree_open_zero(const char *path, struct statetree **out,
			struct errmsg *err);
int statetree_open_universal(const char *path, struct statetree **out,
			     struct errmsg *err);

int statetree_open_hf(const char *path, struct statetree **out,
		      struct errmsg *err);

/* Add a parameter: -ENOMEM, -E2BIG. */
int statetree_add(struct statetree *t, const char *name, struct errmsg *err);

/* Add another name of a parameter: -ENOMEM. */
int statetree_add_tie(struct statetree *t, const char *name, const char *of,
		      struct errmsg *err);

/* Add a state: -E2BIG. */
int statetree_add_state(struct statetree_states *s, const char *name,
			size_t len, struct errmsg *err);

/* Add the state that a file holds, if that is a .pt file: -E2BIG. */
int statetree_add_file(struct statetree_states *s, const char *file,
		       struct errmsg *err);

#endif
