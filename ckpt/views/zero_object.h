/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ZERO_OBJECT_H
#define UCKPT_ZERO_OBJECT_H

/* The objects in the files of a new rank. */

#include "ckpt/format/names.h"
#include "ckpt/format/value.h"
#include "ckpt/table/geometry.h"
#include "ckpt/vfile/file_layout.h"
#include "ckpt/views/recut_impl.h"

/* A set of names with a value for each. */
struct recut_name {
	const char *name;    /* must be first: array_by_text */
	struct value *value; /* the value of a dict's entry */
	uint32_t index;
};

struct recut_names {
	struct recut_name *v; /* sorted by name */
	size_t n;
};

/* Index the names of a dict's entries; `index` counts them.  Memory comes from the arena; if it
 * runs out the set is empty. */
void recut_names_init(struct recut_names *s, struct arena *a, const struct value *v);
const struct recut_name *recut_names_find(const struct recut_names *s, const char *name);

/*
 * A new file while its object is made: the object of an old file with new values for known keys.
 * All other nodes are those that were read, so shared objects stay shared.  Failures are noted in
 * the layout (file_layout.h).
 */
struct zero_object {
	const struct recut *s;
	const struct recut_mp *m;
	unsigned mp;
	unsigned rank;     /* the new rank */
	unsigned old_rank; /* old rank of the template: */
	struct value *root;
	const char *file; /* for messages */
	struct file_layout *d; /* has the tensors of `root` */
	struct arena *a;       /* arena of the layout */
};

/* The new rank's place in a group. */
static inline struct rank_place zero_object_place(const struct zero_object *o,
						  const struct recut_group *g)
{
	return rank_stripe_place(&g->stripe, o->mp, o->rank);
}

/* Record the failure.  Returns NULL. */
static inline struct value *zero_object_fail(const struct zero_object *o, int rc)
{
	layout_note(o->d, rc);
	return NULL;
}

#define ZERO_OBJECT_FAIL(o, code, fmt, ...) \
	zero_object_fail(o, errmsg_set((o)->d->err, code, "%s: " fmt, (o)->file, ##__VA_ARGS__))

/* Make the object of a rank's model states, as checkpoint_ops.object, including the data of
 * rows. */
struct value *zero_object_states(struct checkpoint *c, unsigned mp, unsigned rank,
				 struct file_layout *d);

/* The new rank's "folding" (zero_folding.c), or NULL. */
struct value *zero_object_folding(struct zero_object *o);

/* The objects of the two kinds of files (zero_optim.c, zero_model.c). */
struct value *zero_object_optim(struct zero_object *o);
struct value *zero_object_model(struct zero_object *o);

/* Append the pairs of `from` to the dict `out`, with the values that `make` returns, and return
 * it.  A key whose value is NULL is omitted. */
typedef struct value *zero_object_make(struct zero_object *o, void *ctx,
				       const struct value_pair *pair);
struct value *zero_object_map(struct zero_object *o, struct value *out, const struct value *from,
			      zero_object_make *make, void *ctx);

/* The ds_config of the old file, with the new stage. */
struct value *zero_object_config(const struct zero_object *o);

#endif
