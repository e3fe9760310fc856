/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing one file.  Its storages are written before what lies between them,
 * since that holds their checksums: they are summed while they pass.
 *
 *     | literal 0 | storage 0 | literal 1 | storage 1 | literal 2 |
 *           3           1           4           2           5
 *
 * Of takers, storages are written in pieces and by many.
 */
#include "ckpt/convert/treefile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/plan/plan.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/convert/treewrite.h"
#include "ckpt/vfile/vfile.h"

/* Read and written at once. */
#define PIECE_MAX (1u << 20)

/* A file that bytes go to. */
struct sink {
	const char *path; /* in the tree; NULL: none */
	int fd;
};

/* Takers that stay open: those of one piece do, which are one or two. */
#define TAKERS_OPEN 4

/* One thread's work on one file. */
struct out {
	struct treefile_target *t;
	struct vfile *f;
	struct taker *self; /* that the file is; NULL: none */
	struct sink own;
	struct sink takers[TAKERS_OPEN];
	uint8_t *buf; /* PIECE_MAX bytes, or as many as the file has */
};

static int fail(const struct treefile_target *t, const char *path,
		const char *what, struct errmsg *err)
{
	return errmsg_set(err, -errno, "%s/%s: cannot %s: %s",
			  t->options->shown, path, what, strerror(errno));
}

static int open_sink(const struct treefile_target *t, struct sink *s,
		     const char *path, int flags, struct errmsg *err)
{
	s->fd = openat(t->dir, path, O_WRONLY | O_CLOEXEC | flags, 0666);
	if (s->fd < 0)
		return fail(t, path, flags ? "create" : "open", err);
	s->path = path;
	return 0;
}

/* `rc`, or what closing has told. */
static int close_sink(const struct treefile_target *t, struct sink *s, int rc,
		      struct errmsg *err)
{
	/* Network file systems tell here that the quota is exceeded. */
	if (s->path && close(s->fd) < 0 && !rc)
		rc = fail(t, s->path, "write", err);
	s->path = NULL;
	return rc;
}

/* `bytes` more are there. */
static int progress(const struct out *o, uint64_t bytes)
{
	const struct treewrite_options *const options = o->t->options;

	return options->progress(options->ctx, bytes) ? 0 : -EINTR;
}

static int write_piece(const struct out *o, const struct sink *s,
		       const uint8_t *p, size_t len, uint64_t off,
		       struct errmsg *err)
{
	const size_t bytes = len;

	while (len) {
		const ssize_t n = pwrite(s->fd, p, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail(o->t, s->path, "write", err);
		p += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return progress(o, bytes);
}

/* --- takers -------------------------------------------------------------------- */

/* Bytes [off, off + len) of a taker, which are at `p`, are written. */
static int note_part(const struct out *o, struct taker *k,
		     const uint8_t *p, size_t len, uint64_t off,
		     struct errmsg *err)
{
	const struct checksum part = {
		.off = off,
		.len = len,
		.crc = vfile_wants_sums(k->f) ? checksum_add(0, p, len) : 0,
	};

	if (takers_wrote(&o->t->takers, k, &part) < 0)
		return errmsg_set(err, -ENOMEM, "%s: out of memory", k->path);
	return 0;
}

static int write_to_taker(struct out *o, struct taker *k,
			  const uint8_t *p, size_t len, uint64_t off,
			  struct errmsg *err)
{
	struct sink *const s =
		&o->takers[(size_t)(k - o->t->takers.v) % TAKERS_OPEN];
	int rc = 0;

	if (s->path != k->path) {
		rc = close_sink(o->t, s, 0, err);
		if (!rc)
			rc = open_sink(o->t, s, k->path, 0, err);
	}
	if (!rc)
		rc = write_piece(o, s, p, len, off, err);
	return rc ? rc : note_part(o, k, p, len, off, err);
}

/* Bytes [from, end) of a shard are at `p`: others may take them. */
static int give_run(struct out *o, uint32_t shard, const uint8_t *p,
		    uint64_t from, uint64_t end, struct errmsg *err)
{
	const struct takers *const all = &o->t->takers;
	size_t pos = TAKERS_BEGIN;
	struct taker_run run;
	int rc = 0;

	while (!rc && takers_next(all, vfile_shards(o->f), shard, from, end,
				  &pos, &run))
		if (&all->v[run.taker] != o->self)
			rc = write_to_taker(o, &all->v[run.taker],
					    p + (run.from - from),
					    (size_t)(run.end - run.from),
					    run.at, err);
	return rc;
}

/* Bytes [off, off + len) of the file are in `buf'. */
static int give_piece(struct out *o, size_t len, uint64_t off,
		      struct errmsg *err)
{
	const struct extent_map *const m = vfile_extents(o->f);
	const uint64_t end = off + len;
	int rc = 0;

	for (size_t i = extent_find(m, off);
	     !rc && i < m->n && m->v[i].start < end; i++) {
		const struct extent *const e = &m->v[i];
		const uint64_t start = e->start > off ? e->start : off;
		const uint64_t stop = e[1].start < end ? e[1].start : end;
		const uint64_t from = e->from + (start - e->start);

		if (e->kind == EXTENT_SHARD)
			rc = give_run(o, e->shard, o->buf + (start - off), from,
				      from + (stop - start), err);
	}
	return rc;
}

/* --- content ------------------------------------------------------------------- */

static int copy_range(struct out *o, uint64_t off, uint64_t end,
		      struct errmsg *err)
{
	int rc = 0;

	while (!rc && off < end) {
		const uint64_t left = end - off;
		const size_t len = left < PIECE_MAX ? (size_t)left : PIECE_MAX;
		const int64_t n = vfile_read(o->f, o->buf, len, off, err);

		if (n < 0)
			return (int)n;
		rc = write_piece(o, &o->own, o->buf, (size_t)n, off, err);
		if (!rc && o->self)
			rc = note_part(o, o->self, o->buf, (size_t)n, off, err);
		else if (!rc)
			vfile_sum(o->f, o->buf, (size_t)n, off);
		if (!rc)
			rc = give_piece(o, (size_t)n, off, err);
		off += (uint64_t)n;
	}
	return rc;
}

/* Copy the storages or, if `literals`, what lies between them. */
static int copy_kind(struct out *o, bool literals, struct errmsg *err)
{
	const struct extent_map *const m = vfile_extents(o->f);
	size_t i = 0;
	int rc = 0;

	while (!rc && i < m->n) {
		const uint64_t start = m->v[i].start;
		const bool literal = m->v[i].kind == EXTENT_LITERAL;
		const bool zero = m->v[i].kind == EXTENT_ZERO;

		/* A storage may be made of many extents. */
		while (i < m->n &&
		       (m->v[i].kind == EXTENT_LITERAL) == literal &&
		       (m->v[i].kind == EXTENT_ZERO) == zero)
			i++;
		if (literal != literals)
			continue;
		/* Zeros are left a hole: what follows, if only the file's end,
		 * is written after it. */
		rc = zero ? progress(o, m->v[i].start - start) :
			    copy_range(o, start, m->v[i].start, err);
	}
	return rc;
}

/* If the file is a copy of a shard, its mode and times are the shard's. */
static int copy_mode_and_times(const struct out *o, struct errmsg *err)
{
	const int64_t shard = vfile_original(o->f);
	const char *original;
	struct stat st;

	if (shard < 0)
		return 0;
	original = shardcache_path(vfile_shards(o->f), (uint32_t)shard);
	if (stat(original, &st) < 0)
		return errmsg_set(err, -errno, "%s: cannot stat: %s", original,
				  strerror(errno));
	if (fchmod(o->own.fd, st.st_mode & 07777) < 0 ||
	    futimens(o->own.fd,
		     (const struct timespec[2]){ st.st_atim, st.st_mtim }) < 0)
		return fail(o->t, o->own.path, "write", err);
	return 0;
}

/* All storages are written. */
static int finish(struct out *o, struct errmsg *err)
{
	int rc = copy_kind(o, true, err);

	if (!rc)
		rc = copy_mode_and_times(o, err);
	/* Only a hint: syncfs has the last word. */
	if (!rc)
		sync_file_range(o->own.fd, 0, 0, SYNC_FILE_RANGE_WRITE);
	return rc;
}

/* --- one file -------------------------------------------------------------------- */

static int begin(struct out *o, const char *path, int flags, struct errmsg *err)
{
	const uint64_t size = vfile_size(o->f);
	const int rc = open_sink(o->t, &o->own, path, flags, err);

	if (rc)
		return rc;
	o->buf = malloc(size < PIECE_MAX ? (size_t)size + 1 : PIECE_MAX);
	return o->buf ? 0 :
			errmsg_set(err, -ENOMEM, "%s: out of memory", path);
}

static int end(struct out *o, int rc, struct errmsg *err)
{
	rc = close_sink(o->t, &o->own, rc, err);
	for (size_t i = 0; i < TAKERS_OPEN; i++)
		rc = close_sink(o->t, &o->takers[i], rc, err);
	free(o->buf);
	return rc;
}

int treefile_write(struct treefile_target *t, const char *path, uint64_t node,
		   struct errmsg *err)
{
	struct out o = { .t = t };
	int rc = plan_file_open(t->p, node, &o.f, err);

	if (rc)
		return rc;
	rc = begin(&o, path, O_CREAT | O_EXCL, err);
	if (!rc)
		rc = copy_kind(&o, false, err);
	if (!rc)
		rc = finish(&o, err);
	rc = end(&o, rc, err);
	vfile_free(o.f);
	return rc;
}

int treefile_create_taker(struct treefile_target *t, const char *path,
			  uint64_t node, struct errmsg *err)
{
	struct sink s = { 0 };
	struct vfile *f;
	int rc = plan_file_open(t->p, node, &f, err);

	if (rc)
		return rc;
	rc = open_sink(t, &s, path, O_CREAT | O_EXCL, err);
	rc = close_sink(t, &s, rc, err);
	if (!rc && takers_add(&t->takers, path, f) < 0)
		rc = errmsg_set(err, -ENOMEM, "%s: out of memory", path);
	if (rc)
		vfile_free(f);
	return rc;
}

int treefile_write_part(struct treefile_target *t, struct taker *k,
			uint64_t off, uint64_t len, struct errmsg *err)
{
	struct out o = { .t = t, .f = k->f, .self = k };
	int rc = begin(&o, k->path, 0, err);

	if (!rc)
		rc = copy_range(&o, off, off + len, err);
	return end(&o, rc, err);
}

int treefile_finish_taker(struct treefile_target *t, struct taker *k,
			  struct errmsg *err)
{
	struct out o = { .t = t, .f = k->f };
	int rc = begin(&o, k->path, 0, err);

	taker_settle(k);
	vfile_sum_parts(k->f, k->parts, k->n);
	if (!rc)
		rc = finish(&o, err);
	return end(&o, rc, err);
}
