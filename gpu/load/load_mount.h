/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_MOUNT_H
#define UCTRAIN_LOAD_MOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/bytes.h"

struct arena;
struct errmsg;
struct extent_map;
struct source;
struct uckpt;
struct value;

/* The shards that a checkpoint of a mount is made of. */
struct mount {
	uint64_t dev, plan;    /* of the mount; of its files (UCFS_PLAN_SHIFT) */
	struct shards *shards; /* with the mount's numbers; NULL: no mount */
};

/* Ask a file of the checkpoint for the shards.  None if the file is not in a mount. */
int mount_open(struct mount *m, struct uckpt *u, const struct source *file, struct errmsg *err);
void mount_close(struct mount *m);

/* Ask where all bytes of a file lie, and append that to `out`, which is empty.  It stays empty if
 * the mount does not tell, or the file is not of the mount's plan.  Bytes that are not in shards
 * are gathers. */
int mount_extents(const struct mount *m, const struct source *file, struct extent_map *out,
		  struct errmsg *err);

/* Read the object of a torch.save file in a mount, and the number of bytes before its only storage,
 * which fills the file up to its end: `map` are the extents of its bytes.  To read the file itself
 * would begin to read its tensor.  False if the file has another layout.  The arena owns the
 * object; memory may be taken from it even on failure. */
bool mount_head(const struct source *file, const struct extent_map *map, struct arena *a,
		struct value **root);

/* As mount_head, from those bytes. */
bool mount_head_object(struct span head, const char *name, struct arena *a, struct value **root);

#endif
