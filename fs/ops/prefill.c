/* SPDX-License-Identifier: Apache-2.0 */
/*
 * If one of the pages is being read, the kernel blocks the store until that READ
 * has been answered.  There are at least two server threads, so only one at a
 * time may store.
 */
#include "fs/ops/prefill.h"

#include <fuse_lowlevel.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/vfile.h"
#include "fs/log/stats.h"

/* The kernel's default readahead. */
#define SMALL_MAX (UINT64_C(128) << 10)

/* The table of files that are stored already, indexed by a hash of the inode. */
#define STORED_BITS 12

struct prefill {
	struct fuse_session *se;
	struct stats *stats;
	_Atomic uint64_t stored[1 << STORED_BITS];
	atomic_flag busy; /* protects the rest */
	uint8_t bytes[SMALL_MAX];
};

struct prefill *prefill_new(struct fuse_session *se, struct stats *stats)
{
	struct prefill *const s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->se = se;
	s->stats = stats;
	atomic_flag_clear(&s->busy);
	return s;
}

void prefill_free(struct prefill *s)
{
	free(s);
}

bool prefill_eligible(uint64_t size)
{
	return size <= SMALL_MAX;
}

/* Called by one thread at a time. */
static bool prefill_store(struct prefill *s, uint64_t ino, struct vfile *v)
{
	struct fuse_bufvec bytes = FUSE_BUFVEC_INIT(0);
	struct errmsg err = { "" };
	const int64_t n = vfile_read(v, s->bytes, sizeof(s->bytes), 0, &err);

	if (n <= 0)
		return false; /* reading the file reports the error */
	bytes.buf[0].mem = s->bytes;
	bytes.buf[0].size = (size_t)n;
	if (fuse_lowlevel_notify_store(s->se, ino, 0, &bytes, 0))
		return false;
	stats_add(s->stats, STATS_READ_BYTES, n);
	return true;
}

void prefill_file(struct prefill *s, uint64_t ino, struct vfile *v)
{
	_Atomic uint64_t *const stored =
		&s->stored[(ino ^ ino >> 32) * UINT64_C(0x9e3779b97f4a7c15) >>
			   (64 - STORED_BITS)];

	if (atomic_load(stored) == ino || atomic_flag_test_and_set(&s->busy))
		return;
	if (prefill_store(s, ino, v))
		atomic_store(stored, ino);
	atomic_flag_clear(&s->busy);
}
