/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VFILE_H
#define UCKPT_VFILE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/format/ptwrite.h"

struct checksum;
struct crew;
struct errmsg;
struct gathers;
struct shardcache;

/*
 * The CRC-32 of a storage, shared by all who have the file open: 0 while
 * unknown, otherwise VFILE_CRC_KNOWN | crc.
 */
typedef _Atomic uint64_t vfile_crc;
#define VFILE_CRC_KNOWN (UINT64_C(1) << 32)

/*
 * A virtual file opened for reading: its extents, and the bytes that come
 * from no shard.  The last literal holds the storages' CRC-32s and is only
 * rendered when somebody reads it: sums that are not known yet are computed
 * then, from one pass over the data.  Thread-safe after vfile_new_*.
 */
struct vfile;

/* A shard as it is. */
struct vfile *vfile_new_verbatim(struct shardcache *c, uint32_t shard,
				 struct errmsg *err);

/* Bytes as they are.  Takes over `bytes`, on success only. */
struct vfile *vfile_new_bytes(struct bytebuf *bytes, struct errmsg *err);

/*
 * A file of torch.save.  `storages[i]` maps storage i of `w`, with extents of
 * shards and gathers only and of exactly its length (asserted); they are copied.
 * `crc[n]` must outlive the file; NULL for files without checksums.  Takes
 * over `w` and `gathers` (which extents may refer to), on success only.
 */
struct vfile *vfile_new_pt(struct shardcache *c, struct ptwrite *w,
			   const struct extent_map *storages,
			   struct gathers *gathers, vfile_crc *crc,
			   struct errmsg *err);

/* Bytes, and behind them the tensors whose maps are `tensors`, one after the
 * other: a file without checksums.  Takes over `head` and `gathers`, on success
 * only. */
struct vfile *vfile_new_tensors(struct shardcache *c, struct bytebuf *head,
				const struct extent_map *tensors, size_t n,
				struct gathers *gathers, struct errmsg *err);
void vfile_free(struct vfile *f);

/* The files that shards are numbers of; NULL if the file has no such bytes. */
struct shardcache *vfile_shards(const struct vfile *f);

uint64_t vfile_size(const struct vfile *f);
const struct extent_map *vfile_extents(const struct vfile *f);

/* -EIO if a shard of the file is no longer the one that was planned. */
int vfile_check(struct vfile *f, struct errmsg *err);

/* Read up to `len` bytes at `off`, fewer only at the end of the file.
 * Returns the number, or a negative errno. */
int64_t vfile_read(struct vfile *f, void *buf, size_t len, uint64_t off,
		   struct errmsg *err);

/*
 * The same bytes as pieces of memory, mostly of mapped shards, so that they
 * can be handed to the kernel without a copy.  User code must not touch them
 * (see shardcache.h).  A window is unmapped by the thread that mapped it, the last
 * one first.
 */
#define VFILE_IOV_MAX 512

struct vfile_window {
	struct iovec iov[VFILE_IOV_MAX];
	int n;
	size_t len;
	struct {
		uint32_t shard;
		const uint8_t *p;
	} maps[VFILE_IOV_MAX]; /* in use until vfile_unmap */
	int nmaps;
	void *bounce; /* what had to be copied: scratch memory */
};

int vfile_map(struct vfile *f, size_t len, uint64_t off,
	      struct vfile_window *w, struct errmsg *err);
void vfile_unmap(struct vfile *f, struct vfile_window *w);

/*
 * Continue the checksum with what has been mapped, if that was done from
 * front to back, so that a reader who copies the file so finds the trailer
 * ready.  To be called once the reader has its bytes: they are read again,
 * from the page cache.
 */
void vfile_sum_behind(struct vfile *f);

/*
 * The same for a reader who has bytes [off, off + len) in `buf`, and for all
 * storages of the file: who reads them one after the other, the trailer last,
 * reads every byte once.
 */
void vfile_sum(struct vfile *f, const void *buf, size_t len, uint64_t off);

/* Are there checksums that are not known yet? */
bool vfile_wants_sums(const struct vfile *f);

/*
 * For who has had the bytes in any order: `n` ranges of the file, in order and none
 * overlapping, and their CRC-32s, but for those that are unsummed.  Storages that
 * some of them make up are summed then.
 */
void vfile_sum_parts(struct vfile *f, const struct checksum *parts, size_t n);

/*
 * The whole file, with all its checksums from the same pass, to `at`, by up to
 * `width` threads, and by those of `crew` that come to help (NULL: nobody).  When
 * it succeeds, the shards were those that were planned up to the end.
 */
int vfile_fill(struct vfile *f, void *at, unsigned width, struct crew *crew,
	       struct errmsg *err);

/* The shard that the file is a copy of: its number, or -1. */
int64_t vfile_original(const struct vfile *f);

#endif
