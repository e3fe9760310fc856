/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLANNED_FILES_H
#define UCKPT_PLANNED_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/views/plan.h"

/* The files that the plan of a tag, or of a Hugging Face directory, was made from.  A save
 * replaces them one by one, so that files of two generations exist meanwhile. */

/* Are all files still the planned ones? In a remote store only two files of a tag are checked, its
 * first optimizer shard and first model states; a save replaces these, too. */
bool planned_files_are_there(struct plan *p, struct errmsg *why);

/* Hash the identities of all files that exist now; 0 if they are the plan's files, or no complete
 * checkpoint. */
uint32_t planned_files_sum(struct plan *p);

/* Check that no file is half-written.  If a tag was written to recently, opens its files, unless
 * they are remote; later, each file is checked when it is read. */
bool planned_files_are_whole(struct plan *p, struct errmsg *why);

/* Are optimizer shards missing that may still be written? A save writes them after the model
 * states: true if model states were written since `began`, and recently. */
bool planned_files_are_early(struct plan *p, int64_t began, struct errmsg *why);

/* Return the time stamp that a file written now would get. */
int64_t planned_files_now(void);

#endif
