/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TREEFILE_H
#define UCKPT_TREEFILE_H

#include <stdint.h>

#include "ckpt/convert/shared_ranges.h"

struct errmsg;
struct plan;
struct treewrite_options;

/* A tree that is being written. */
struct treefile_target {
	struct plan *p;
	int dir;
	const struct treewrite_options *options;
	struct takers takers;
};

/* Write the file of a node, and bytes of shards that pass to takers.
 * Thread-safe. */
int treefile_write(struct treefile_target *t, const char *path, uint64_t node,
		   struct errmsg *err);

/* Create the file of a node, empty, and add it to the takers. */
int treefile_create_taker(struct treefile_target *t, const char *path,
			  uint64_t node, struct errmsg *err);

/* Write bytes [off, off + len) of a taker, and to others what they have of
 * them.  Thread-safe. */
int treefile_write_part(struct treefile_target *t, struct taker *k,
			uint64_t off, uint64_t len, struct errmsg *err);

/* All storages of a taker are written: write what lies between them. */
int treefile_finish_taker(struct treefile_target *t, struct taker *k,
			  struct errmsg *err);

#endif
