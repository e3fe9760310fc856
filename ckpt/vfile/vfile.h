/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VFILE_H
#define UCKPT_VFILE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "ckpt/base/bytes.h"
#include "ckpt/format/ptwrite.h"
#include "ckpt/remote/cache.h"
#include "ckpt/vfile/extent.h"

struct errmsg;
struct gathers;
struct progress;
struct shards;
struct source;

/*
 * The CRC-32 of a storage, shared by all handles of the file: 0 while
 * unknown, otherwise VFILE_CRC_KNOWN | crc.
 */
typedef _Atomic uint64_t vfile_crc;
#define VFILE_CRC_KNOWN (UINT64_C(1) << 32)

/*
 * A virtual file opened for reading: its extents, and the bytes that come
 * from no shard.  The last literal holds the storages' CRC-32s and is rendered when it is first
 * read; unknown CRCs are then computed in one pass over the data.  Thread-safe after vfile_new_*.
 */
struct vfile;

/* Make a file with the bytes of a shard. */
struct vfile *vfile_new_copy(struct shards *c, uint32_t shard, struct errmsg *err);

/* Make a file with these bytes.  Takes ownership of `bytes`, on success only. */
struct vfile *vfile_new_bytes(struct bytebuf *bytes, struct errmsg *err);

/*
 * Make a file of torch.save.  `storages[i]` maps storage i of `w`, with extents of shards and
 * gathers only and of exactly its length (asserted); they are copied.  `crc[n]` must outlive the
 * file; NULL for files without checksums.  Takes ownership of `w` and of `gathers`, to which
 * extents may refer, on success only.
 */
struct vfile *vfile_new_pt(struct shards *c, struct ptwrite *w, const struct extent_map *storages,
			   struct gathers *gathers, vfile_crc *crc, struct errmsg *err);

/* Make a file without checksums: `head` with tensors[i] inserted at offset after[i] of it; `after`
 * must not descend.  Takes ownership of `head` and `gathers`, on success only. */
struct vfile *vfile_new_tensors(struct shards *c, struct bytebuf *head,
				const struct extent_map *tensors, const size_t *after, size_t n,
				struct gathers *gathers, struct errmsg *err);
void vfile_free(struct vfile *f);

/* Set the file's name for messages; the file owns it.  May be NULL. */
void vfile_set_name(struct vfile *f, char *name);

/* Return the shards that extents refer to; NULL if the file has no bytes of shards. */
struct shards *vfile_shards(const struct vfile *f);

/* Call `step` for each shard that the file uses, possibly several times.  Returns the first result
 * that is not 0. */
typedef int vfile_shard_fn(void *ctx, uint32_t shard);
int vfile_each_shard(const struct vfile *f, vfile_shard_fn *step, void *ctx);

uint64_t vfile_size(const struct vfile *f);
const struct extent_map *vfile_extents(const struct vfile *f);

/* Return -EIO if a shard of the file is no longer the planned one. */
int vfile_check(struct vfile *f, struct errmsg *err);

/* Use zero checksums in this handle, which must not have been read yet: for a caller that needs the
 * file's structure, not its data. */
int vfile_skip_sums(struct vfile *f, struct errmsg *err);

/* Read up to `len` bytes at `off`, fewer only at the end of the file.  The bytes read extend the
 * checksum, so that a sequential reader reads each byte once.  Returns the number, or a negative
 * errno. */
int64_t vfile_read(struct vfile *f, void *buf, size_t len, uint64_t off, struct errmsg *err);

/* Compare with a source of the same size, and count equal bytes.  Returns 0 if all are equal, 1
 * with the offset of the first difference, or an error; -EINTR as progress_add. */
int vfile_compare(struct vfile *f, const struct source *with, struct progress *progress,
		  uint64_t *at, struct errmsg *err);

/* Return how many bytes a sequential reader should prefetch (cache_readahead_bytes); 0 if the file
 * has no bytes of shards. */
uint64_t vfile_readahead_bytes(const struct vfile *f);

/* Are the file's shards remote (shards.h)? */
bool vfile_is_slow(const struct vfile *f);

/*
 * Prefetch bytes [off, off + len) of the file, as far as they exist (cache.h).  Returns how many,
 * from the first on, are in memory or being fetched; fewer when memory is used up: ask for the rest
 * later.
 */
uint64_t vfile_prefetch(struct vfile *f, uint64_t off, uint64_t len, enum want when);

/* The progress of prefetching for one reader, or for several that read a range together.  Valid
 * when zero-initialised. */
struct vfile_ahead {
	_Atomic uint64_t at;
};

/* A sequential reader needs `now` bytes at `off`.  Prefetch these and the rest of `window` bytes
 * from a->at on, if the file is remote and memory permits.  Cheap if little has changed since the
 * last call.  Thread-safe. */
void vfile_read_ahead(struct vfile *f, struct vfile_ahead *a, uint64_t off, uint64_t now,
		      uint64_t window);

/* Read a virtual file as a source.  Takes ownership of `f`, also if it fails.  `name`
 * must outlive the source.  -ENOMEM. */
int vfile_source_open(struct source *s, struct vfile *f, const char *name, struct errmsg *err);

/* Announce sequential reads up to `end`: bytes up to there are prefetched, none after it.  By
 * default nothing is prefetched. */
void vfile_source_expect(struct source *s, uint64_t end);

/*
 * The bytes of a file as pieces of memory, mostly mapped shards, which can be passed to the kernel
 * without a copy.  User code must not access them (see shards.h).
 */
#define VFILE_IOV_MAX 512
#define VFILE_PINS_MAX 16

struct reply_pieces {
	struct iovec iov[VFILE_IOV_MAX];
	int n;
	uint64_t off; /* in the file */
	size_t len;
	struct {
		uint32_t shard;
		const uint8_t *p;
	} maps[VFILE_IOV_MAX]; /* in use until vfile_unmap */
	int nmaps;
	struct cache_pin pins[VFILE_PINS_MAX]; /* pinned blocks of a remote file */
	int npins;
	void *bounce; /* scratch memory for a copy, if one was needed */
};

int vfile_map(struct vfile *f, size_t len, uint64_t off, struct reply_pieces *w,
	      struct errmsg *err);

/* Check that the mapped shards are still the planned ones, so that the kernel got the right bytes.
 * -EIO if not. */
int vfile_check_pieces(struct vfile *f, const struct reply_pieces *w, struct errmsg *err);

/* Release the pieces.  `sent`: the reader has received them, and they extend the checksum; for
 * that, mapped bytes are read again from the page cache. */
void vfile_unmap(struct vfile *f, struct reply_pieces *w, bool sent);

/* Return the number of the shard that the file is a copy of, or -1. */
int64_t vfile_copied_shard(const struct vfile *f);

#endif
