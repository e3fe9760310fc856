/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that the kernel is given before it asks for them.
 *
 * It waits when one of the pages is about to be read, until that READ has been
 * answered; so of the threads that answer, of which there are two at least,
 * one at a time may wait here.
 */
#include "fs/ops/prefill.h"

#include <fuse_lowlevel.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/vfile.h"
#include "fs/log/stats.h"

/* What the kernel reads ahead at once. */
#define SMALL_MAX (UINT64_C(128) << 10)

/* Files that were brought, by a hash of their inode: they need not be again. */
#define BROUGHT_BITS 12

struct small {
	struct fuse_session *se;
	struct stats *stats;
	_Atomic uint64_t brought[1 << BROUGHT_BITS];
	atomic_flag busy; /* protects the rest */
	uint8_t bytes[SMALL_MAX];
};

struct small *small_new(struct fuse_session *se, struct stats *stats)
{
	struct small *const s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->se = se;
	s->stats = stats;
	atomic_flag_clear(&s->busy);
	return s;
}

void small_free(struct small *s)
{
	free(s);
}

bool small_is(uint64_t size)
{
	return size <= SMALL_MAX;
}

/* Called by one thread at a time. */
static bool store(struct small *s, uint64_t ino, struct vfile *v)
{
	struct fuse_bufvec bytes = FUSE_BUFVEC_INIT(0);
	struct errmsg err = { "" };
	const int64_t n = vfile_read(v, s->bytes, sizeof(s->bytes), 0, &err);

	if (n <= 0)
		return false; /* who reads the file will be told */
	bytes.buf[0].mem = s->bytes;
	bytes.buf[0].size = (size_t)n;
	if (fuse_lowlevel_notify_store(s->se, ino, 0, &bytes, 0))
		return false;
	stats_add(s->stats, STATS_READ_BYTES, (uint64_t)n);
	stats_add(s->stats, STATS_SHARD_BYTES, (uint64_t)n);
	return true;
}

void small_bring(struct small *s, uint64_t ino, struct vfile *v)
{
	_Atomic uint64_t *const brought =
		&s->brought[(ino ^ ino >> 32) * UINT64_C(0x9e3779b97f4a7c15) >>
			    (64 - BROUGHT_BITS)];

	if (atomic_load(brought) == ino || atomic_flag_test_and_set(&s->busy))
		return;
	if (store(s, ino, v))
		atomic_store(brought, ino);
	atomic_flag_clear(&s->busy);
}
