/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLANNED_FILES_H
#define UCKPT_PLANNED_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/views/view.h"

/* The files that the view of a tag, or of a Hugging Face directory, was made from.  A save
 * replaces them one by one, so that files of two generations exist meanwhile. */

/* Are all files still the planned ones? In a remote store only two files of a tag are checked, its
 * first optimizer shard and first model states; a save replaces these, too. */
bool source_files_are_there(struct view *v, struct errmsg *why);

/* Hash the identities of all files that exist now; 0 if they are the view's files, or no complete
 * checkpoint. */
uint32_t source_files_sum(struct view *v);

/* Check that no file is half-written.  If a tag was written to recently, opens its files, unless
 * they are remote; later, each file is checked when it is read. */
bool source_files_are_whole(struct view *v, struct errmsg *why);

/* Are optimizer shards missing that may still be written? A save writes them after the model
 * states: true if model states were written since `began`, and recently. */
bool source_files_are_early(struct view *v, int64_t began, struct errmsg *why);

/* Return the time stamp that a file written now would get. */
int64_t source_files_now(void);

#endif
