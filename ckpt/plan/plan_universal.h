/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLAN_UNIVERSAL_H
#define UCKPT_PLAN_UNIVERSAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "ckpt/plan/uc_file.h"
#include "ckpt/plan/plan_impl.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/vfile/vfile.h"

/* The universal tree of a ZeRO tag: what plan_universal.c (the tree),
 * plan_index.c (what is kept of it) and plan_json.c share. */
struct plan_universal {
	struct plan plan;
	struct resolve r;
	vfile_crc *crc; /* [slot * parameters + parameter]: few slots are in
			 * use, and memory that nobody touches is none */
	size_t indexed; /* shard maps and checksums that an index has */

	pthread_mutex_t lock; /* protects the two below while they are made */
	atomic_bool optimizer_known;
	uint64_t optimizer_size;
	vfile_crc *optimizer_crc; /* of each of its storages */
	size_t optimizer_sums;    /* how many these are */

	struct weights *weights; /* NULL: nobody has asked for them yet */
};

static inline struct plan_universal *plan_universal(struct plan *p)
{
	return (struct plan_universal *)p;
}

/* The weights of the tag, which are kept: errors as weights_load. */
int plan_universal_weights(struct plan *p, const struct weights **out,
			   struct errmsg *err);

/* plan_index and plan_json of such a tree. */
int plan_universal_index(struct plan *p, struct bytebuf *out,
			 struct errmsg *err);
int plan_universal_json(struct plan *p, struct bytebuf *out, struct errmsg *err);

/* Take the checksums from what follows in an index: -EBADMSG if it is damaged,
 * -ENOMEM. */
int plan_read_sums(struct plan_universal *u, struct span bytes,
		   struct errmsg *err);

#endif
