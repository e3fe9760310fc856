/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SHARD_IMPL_H
#define UCKPT_SHARD_IMPL_H

#include "ckpt/base/errmsg.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/zero/shard.h"

/* Shared by shard*.c: an optimizer shard while it is read. */
struct shard_reader {
	struct shard *s;
	const struct zero_dir *dir;
	const struct ptfile *pt;
	const struct rank_params *c;
	struct partitioning *layout;
	const struct value *dict; /* the file's optimizer_state_dict */
	const struct value *base; /* torch's dict, or a list of states, in it */
	const char *file;
	struct errmsg *err;
};

/* Return the rank's place in group g. */
static inline struct rank_place shard_place(const struct shard_reader *r, size_t g)
{
	return rank_stripe_place(&r->layout->stripe[g], r->c->mp, r->s->rank);
}

/* Return the name of the first parameter of group g, for messages. */
const char *flat_group_name(const struct shard_reader *r, size_t g);

/* Can a state have this name?  It becomes a file name beside fp32.pt. */
bool shard_is_state_name(const char *name);

/* Is it the RMS of the rank's own partition, of transformers' Adafactor? It is recomputed before
 * each use, and is not a parameter's state. */
bool shard_is_of_partition(const struct param_state *st);

/* shard_partition.c: fill in the layout, if it is empty. */
int shard_build_layout(const struct shard_reader *r);

/* Return the optimizer's own entry for a group of stages 1 and 2, or NULL. */
const struct value *shard_param_group(const struct shard_reader *r, size_t g);

/* Check that the recorded ranks of group g, and the recorded places of its parameters, are those
 * of the layout.  -EBADMSG if not. */
int shard_check_partition(const struct shard_reader *r, size_t g);
int shard_check_mapping(const struct shard_reader *r, size_t g);

/* shard_nvme.c: find the file of tensor `v` that has no elements in the shard but
 * should have `need`.  -EBADMSG if no file of that size exists. */
int shard_find_nvme(const struct shard_reader *r, const struct value *v, const char *what, size_t g,
		    uint64_t need, struct param_state *st);

#endif
