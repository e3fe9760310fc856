/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLAN_UNIVERSAL_H
#define UCKPT_PLAN_UNIVERSAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "ckpt/plan/plan_impl.h"
#include "ckpt/plan/uc_file.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/zero/checkpoint.h"

/* The plan of a ZeRO tag's universal tree.  plan_universal.c provides the tree,
 * plan_universal_json.c the JSON, plan_universal_warn.c the warnings. */
struct plan_universal {
	struct plan plan;
	struct zero_checkpoint r;
	vfile_crc *crc; /* [slot * parameters + parameter]; few slots are in
			 * use, and pages that nobody touches take no memory */

	pthread_mutex_t lock; /* protects the fields below while they are
			       * computed */
	atomic_bool optimizer_known;
	uint64_t optimizer_size;
	vfile_crc *optimizer_crc; /* one per storage */
	size_t optimizer_sums;    /* number of storages */

	struct weights *weights; /* NULL until they are needed */
};

static inline struct plan_universal *plan_universal(struct plan *p)
{
	return (struct plan_universal *)p;
}

/* The operations `json` and `warning` of such a plan. */
int plan_universal_json(struct plan *p, struct bytebuf *out, struct errmsg *err);
int plan_universal_warning(struct plan *p, size_t *pos, struct errmsg *out);

#endif
