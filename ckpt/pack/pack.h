/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACK_H
#define UCKPT_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/source.h"
#include "ckpt/pack/pack_index.h"

struct errmsg;
struct progress;
struct uckpt;

/*
 * A pack, opened for reading: the files of a directory in one file, as ucpack(5) describes it.
 * Immutable and thread-safe; the index has been read and checked, blocks are read on demand.
 */
struct pack;

/* Open a pack whose bytes the source has.  Takes over the source, on success
 * only; its name must outlive the pack.  Errors as pack_index_read; messages have the
 * source's name. */
int pack_open_source(struct uckpt *u, const struct source *src,
		     struct pack **out, struct errmsg *err);

/* Let pack_find find an open pack, which takes over its path; malloc'ed. */
void pack_share(struct pack *p, char *path);

/* Return the shared pack of this path and identity, which the caller must pass to pack_close;
 * NULL if there is none. */
struct pack *pack_find(struct uckpt *u, const char *path, const struct fileid *id);

void pack_close(struct pack *p);

/* Free the packs that stay open without a user. */
void pack_close_kept(struct uckpt *u);

const struct pack_index *pack_index_of(const struct pack *p);

/* Identity of the pack's own file. */
const struct fileid *pack_id(const struct pack *p);

/*
 * Read bytes [off, off + len) of an entry, which must have them (asserted).
 * -EBADMSG if a block is damaged: the message names the file and the block, and
 * none of its bytes have been written to `buf`'s part for it.  -EIO, -ENOMEM.
 */
int pack_read(struct pack *p, uint32_t entry, void *buf, size_t len,
	      uint64_t off, struct errmsg *err);

/* How to work on a whole pack. */
struct pack_work {
	const char *name; /* of the pack, for messages */
	unsigned width;   /* threads */
	struct progress *progress; /* of the files' bytes; or NULL */
};

/*
 * Decode a whole pack and verify each file's hash.  If `dirfd` is not -1, write the files and
 * directories to that empty directory, with their modes and times, and sync them.  -EBADMSG for a
 * damaged block or file, which the message names; -EINTR as progress_add; or the system's error.
 */
int pack_extract(struct pack *p, int dirfd, const struct pack_work *w,
		 struct errmsg *err);

#endif
