/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLAN_IMPL_H
#define UCKPT_PLAN_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "ckpt/bytes.h"
#include "ckpt/content.h"
#include "ckpt/plan.h"
#include "ckpt/resolve.h"
#include "ckpt/vfile.h"

/* What plan.c (the tree) and plan_index.c (what is kept of it) share. */
struct plan {
	struct plan_options options;
	struct resolve r;
	struct shardcache *shards; /* all files, see ckdir_file */
	vfile_crc *crc;            /* [parameter * CONTENT_SLOTS + slot] */
	size_t indexed; /* shard maps and checksums that an index told */

	pthread_mutex_t lock; /* protects the two below while they are made */
	atomic_bool optimizer_known;
	uint64_t optimizer_size;
	vfile_crc *optimizer_crc; /* of each of its storages */
	size_t optimizer_sums;    /* how many these are */
};

/* Take the checksums from what follows in an index: -EBADMSG if it is damaged,
 * -ENOMEM. */
int plan_read_sums(struct plan *p, struct span bytes, struct errmsg *err);

/* How many shard maps and checksums are known. */
size_t plan_count_known(struct plan *p);

#endif
