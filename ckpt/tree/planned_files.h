/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLANNED_FILES_H
#define UCKPT_PLANNED_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/views/plan.h"

/* The files that the plan of a tag, or of a Hugging Face directory, was made of: a save
 * replaces them, and leaves files of two generations meanwhile. */

/* Are they there as they were planned?  Where storage is far, two of a tag are looked at,
 * which a save replaces as all: its first optimizer shard and first model states. */
bool planned_files_are_there(struct plan *p, struct errmsg *why);

/* Sum the identities of all files that are there now; 0 if they are those of the plan, or
 * no complete checkpoint. */
uint32_t planned_files_sum(struct plan *p);

/* Is none of them half-written?  Those of a tag that was written to lately are opened, unless
 * they are far; later, each is checked when it is read. */
bool planned_files_are_whole(struct plan *p, struct errmsg *why);

/* Are shards of the optimizer missing that may be about to be written?  A save writes them
 * after the model states: one of those has been written since `began`, and lately. */
bool planned_files_are_early(struct plan *p, int64_t began, struct errmsg *why);

/* The time that files get which are written now. */
int64_t planned_files_now(void);

#endif
