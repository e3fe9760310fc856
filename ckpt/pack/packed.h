/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACKED_H
#define UCKPT_PACKED_H

#include "ckpt/base/attrs.h"
#include "ckpt/pack/pack.h"

struct dirlist;

/*
 * A file or directory in a pack.  It has its own type, size and modification time, the owner
 * of the pack, and an identity that changes with the pack.  Users may read it if they may
 * read the pack, search the directories in it and read the file, as recorded.
 */
struct packed {
	struct pack *p;
	uint32_t entry;
	struct attrs pack; /* of the whole pack */
};

struct attrs packed_attrs(const struct packed *f);

/* Open a file as a source; -EBADMSG if it is a directory.  Takes over the pack, on success
 * only; `path` must outlive the source. */
int packed_open(const struct packed *f, const char *path, struct source *out,
		struct errmsg *err);

/* Add a directory, under the path, and its entries.  -ENOTDIR, without a message; -ENOMEM. */
int packed_list(const struct packed *f, const char *path, struct dirlist *out,
		struct errmsg *err);

#endif
