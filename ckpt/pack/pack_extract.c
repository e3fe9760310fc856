/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes all files of a pack, to verify or to unpack it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"
#include "ckpt/base/parallel.h"
#include "ckpt/pack/pack.h"
#include "ckpt/pack/pack_hash.h"

/* Bytes that a thread takes at once. */
#define UNIT (32 * BLOCK_SIZE)

struct unit {
	const struct pack_entry *e;
	uint64_t off;
	size_t len;
};

struct extracting {
	struct pack *p;
	const struct pack_index *index;
	int dir; /* -1: nothing is written */
	const struct pack_work *w;
	uint64_t *first;    /* number of units before each entry, and of all units */
	struct turns turns;
	XXH3_state_t *hash; /* of the file whose turn it is */
};

static bool count_units(struct extracting *x)
{
	const struct pack_index *index = x->index;

	x->first = calloc((size_t)index->nentries + 1, sizeof(*x->first));
	for (uint32_t i = 0; x->first && i < index->nentries; i++)
		x->first[i + 1] = x->first[i] +
				  (index->entries[i].size + UNIT - 1) / UNIT;
	return x->first;
}

/* An index may claim any number of units, so they are computed, not listed. */
static struct unit unit_of(const struct extracting *x, size_t i)
{
	const struct pack_index *index = x->index;
	const size_t entry =
		interval_find(x->first, index->nentries, sizeof(*x->first), i);
	const struct pack_entry *e = &index->entries[entry];
	const uint64_t off = (i - x->first[entry]) * UNIT, left = e->size - off;

	return (struct unit){ e, off, left < UNIT ? (size_t)left : UNIT };
}

/* The bytes of a unit. */
struct slot {
	struct extracting *x;
	struct unit u;
	uint8_t bytes[UNIT];
};

/* Compare a file with its hash. */
static int unit_check(void *slot, size_t i, struct errmsg *err)
{
	const struct slot *s = slot;
	const struct extracting *x = s->x;
	const struct unit *u = &s->u;

	(void)i;
	if (u->off == 0)
		XXH3_128bits_reset(x->hash);
	XXH3_128bits_update(x->hash, s->bytes, u->len);
	if (u->off + u->len == u->e->size) {
		const XXH128_hash_t h = XXH3_128bits_digest(x->hash);

		if (h.low64 != u->e->hash[0] || h.high64 != u->e->hash[1])
			return errmsg_set(err, -EBADMSG,
					  "%s: %s: its content is not what was packed", x->w->name,
					  u->e->name);
	}
	return x->w->progress ? progress_add(x->w->progress, u->len) : 0;
}

static int unit_write(const struct slot *s, struct errmsg *err)
{
	const char *name = s->u.e->name;
	const int fd =
		openat(s->x->dir, name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
	int rc = 0;

	if (fd < 0)
		return errmsg_errno(err, name, "cannot open");
	if (pwrite_all(fd, s->bytes, s->u.len, s->u.off))
		rc = errmsg_errno(err, name, "cannot write");
	close(fd);
	return rc;
}

static int unit_extract(void *extracting, size_t i, struct errmsg *err)
{
	struct extracting *x = extracting;
	struct slot *s = scratch_take(sizeof(*s));
	int rc;

	if (s) {
		s->x = x;
		s->u = unit_of(x, i);
	}
	rc = s ? pack_read(x->p, (uint32_t)(s->u.e - x->index->entries), s->bytes,
			   s->u.len, s->u.off, err)
	       : errmsg_nomem(err, NULL);
	rc = turns_take(&x->turns, i, rc, unit_check, s, err);
	if (!rc && x->dir >= 0)
		rc = unit_write(s, err);
	scratch_give(s);
	return rc;
}

/* Make all files, empty, and directories; a directory precedes its entries. */
static int make_entries(const struct extracting *x, struct errmsg *err)
{
	for (uint32_t i = 1; i < x->index->nentries; i++) {
		const struct pack_entry *e = &x->index->entries[i];
		const int fd = S_ISDIR(e->mode)
				       ? mkdirat(x->dir, e->name, 0700)
				       : openat(x->dir, e->name,
						O_WRONLY | O_CREAT | O_EXCL |
							O_NOFOLLOW | O_CLOEXEC,
						0600);

		if (fd < 0)
			return errmsg_errno(err, e->name, "cannot create");
		if (!S_ISDIR(e->mode))
			close(fd);
	}
	return 0;
}

/* Give an entry its mode and time, which writing would have changed, and sync it. */
static int finish_entry(const struct extracting *x, const struct pack_entry *e,
			struct errmsg *err)
{
	const struct timespec times[2] = {
		{ .tv_nsec = UTIME_OMIT },
		{ .tv_sec = e->mtime_s, .tv_nsec = e->mtime_ns },
	};
	const int fd = openat(x->dir, *e->name ? e->name : ".",
			      O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	int rc = 0;

	if (fd < 0)
		return errmsg_errno(err, e->name, "cannot open");
	if (fchmod(fd, e->mode & 0777) < 0 || futimens(fd, times) < 0 ||
	    fsync(fd) < 0)
		rc = errmsg_errno(err, e->name, "cannot write");
	close(fd);
	return rc;
}

static int finish_file(void *ctx, size_t i, struct errmsg *err)
{
	const struct extracting *x = ctx;
	const struct pack_entry *e = &x->index->entries[i];

	return S_ISDIR(e->mode) ? 0 : finish_entry(x, e, err);
}

/* Directories come last, the innermost first: their modes may lock us out. */
static int finish_entries(struct extracting *x, struct errmsg *err)
{
	const struct pack_index *index = x->index;
	int rc = parallel_for(index->nentries, x->w->width, finish_file, x, err);

	for (uint32_t i = index->nentries; !rc && i-- > 0;)
		if (S_ISDIR(index->entries[i].mode))
			rc = finish_entry(x, &index->entries[i], err);
	return rc;
}

int pack_extract(struct pack *p, int dirfd, const struct pack_work *w,
		 struct errmsg *err)
{
	struct extracting x = { .p = p,
				.index = pack_index_of(p),
				.dir = dirfd,
				.w = w,
				.turns = TURNS_INIT };
	int rc = 0;

	x.hash = XXH3_createState();
	if (!x.hash || !count_units(&x))
		rc = errmsg_nomem(err, w->name);
	if (!rc && dirfd >= 0)
		rc = make_entries(&x, err);
	if (!rc)
		rc = parallel_for((size_t)x.first[x.index->nentries], w->width,
				  unit_extract, &x, err);
	if (!rc && dirfd >= 0)
		rc = finish_entries(&x, err);
	XXH3_freeState(x.hash);
	free(x.first);
	return rc;
}
