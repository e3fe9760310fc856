/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_SAVED_AGAIN_H
#define UCFS_SAVED_AGAIN_H

#include <stdbool.h>
#include <stdint.h>

struct plan;

/* Could the source of the plan at `path`, a tag or a Hugging Face directory, have
 * been saved again since the plan was made?  A save replaces all files, so a few of
 * them are looked at, which costs little where storage is far. */
bool saved_again_maybe(struct plan *p, const char *path);

/* A sum of the identities of all files that are at `path` now; 0 if they are those
 * of the plan, or no complete checkpoint. */
uint32_t saved_again_sum(struct plan *p, const char *path);

#endif
