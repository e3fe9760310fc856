/* SPDX-License-Identifier: Apache-2.0 */
/* All files of a pack, to prove it or to have them back. */
#include "ckpt/pack/pack_extract.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/interval.h"
#include "ckpt/pack/pack_hash.h"
#include "ckpt/pack/pack_impl.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/sys/write_all.h"

/* Bytes that a thread takes at once: whole blocks of an extent. */
#define UNIT (32 * BLOCK_SIZE)

struct extract_unit {
	uint32_t entry;
	uint64_t off;
	size_t len;
};

/* A file that is being written. */
struct extract_file {
	int fd;
	atomic_size_t left; /* units that are not finished */
};

struct extracting {
	struct pack *p;
	int dir; /* -1: nothing is written */
	const struct pack_extract_options *o;
	uint64_t *first; /* units before those of each extent, and of all */
	struct extract_file *files; /* of each entry */
	XXH3_state_t *hash;         /* of the file that is being committed */
};

static int extract_fail(const struct extracting *x, uint32_t entry,
			const char *what, struct errmsg *err)
{
	const int rc = errno ? errno : EIO;

	return errmsg_set(err, -rc, "%s: %s: %s", x->p->x.entries[entry].name,
			  what, strerror(rc));
}

/* The number of units is what an index claims: they are found, not listed. */
static struct extract_unit unit_of(const struct extracting *x, size_t i)
{
	const struct pack_index *const index = &x->p->x;
	const uint32_t extent = (uint32_t)interval_find(
		x->first, index->nextents, sizeof(*x->first), i);
	const struct pack_extent *const e = &index->extents[extent];
	const uint64_t skip = (i - x->first[extent]) * UNIT;
	const uint64_t left = e->len - skip;

	return (struct extract_unit){ pack_index_owner(index, extent),
				      e->start + skip,
				      left < UNIT ? (size_t)left : UNIT };
}

static void *extract_begin(void)
{
	return malloc(UNIT);
}

static int extract_read(void *ctx, void *slot, size_t i, struct errmsg *err)
{
	const struct extracting *const x = ctx;
	const struct extract_unit u = unit_of(x, i);

	return pack_read(x->p, u.entry, slot, u.len, u.off, err);
}

static int check_hash(const struct extracting *x, uint32_t entry,
		      struct errmsg *err)
{
	const struct pack_entry *const e = &x->p->x.entries[entry];
	const XXH128_hash_t h = XXH3_128bits_digest(x->hash);

	if (h.low64 == e->hash[0] && h.high64 == e->hash[1])
		return 0;
	return errmsg_set(err, -EBADMSG,
			  "%s: %s: its content is not what was packed",
			  x->p->src.name, e->name);
}

static int create_file(struct extracting *x, uint32_t entry,
		       struct errmsg *err)
{
	const struct pack_entry *const e = &x->p->x.entries[entry];

	if (x->dir < 0)
		return 0;
	x->files[entry].fd = openat(
		x->dir, e->name,
		O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	return x->files[entry].fd < 0
		       ? extract_fail(x, entry, "cannot create", err)
		       : 0;
}

/* Modes and times come last: writing changes them. */
static int close_file(struct extracting *x, uint32_t entry, struct errmsg *err)
{
	const struct pack_entry *const e = &x->p->x.entries[entry];
	const struct timespec times[2] = {
		{ .tv_nsec = UTIME_OMIT },
		{ .tv_sec = e->mtime_s, .tv_nsec = e->mtime_ns },
	};
	const int fd = x->files[entry].fd;
	bool ok;

	if (fd < 0)
		return 0;
	ok = fchmod(fd, e->mode & 0777) == 0 && futimens(fd, times) == 0 &&
	     fsync(fd) == 0;
	x->files[entry].fd = -1;
	if (ok)
		return close(fd) < 0
			       ? extract_fail(x, entry, "cannot write", err)
			       : 0;
	extract_fail(x, entry, "cannot write", err);
	close(fd);
	return -EIO;
}

static int extract_commit(void *ctx, void *slot, size_t i, struct errmsg *err)
{
	struct extracting *const x = ctx;
	const struct extract_unit u = unit_of(x, i);
	const uint64_t end = u.off + u.len;
	int rc = 0;

	if (u.off == 0) {
		XXH3_128bits_reset(x->hash);
		rc = create_file(x, u.entry, err);
	}
	XXH3_128bits_update(x->hash, slot, u.len);
	if (!rc && end == x->p->x.entries[u.entry].size)
		rc = check_hash(x, u.entry, err);
	if (!rc && x->o->progress && !x->o->progress(x->o->ctx, u.len))
		rc = -EINTR;
	return rc;
}

static int extract_write(void *ctx, void *slot, size_t i, struct errmsg *err)
{
	struct extracting *const x = ctx;
	const struct extract_unit u = unit_of(x, i);
	struct extract_file *const f = &x->files[u.entry];

	if (f->fd >= 0 && pwrite_all(f->fd, slot, u.len, u.off))
		return extract_fail(x, u.entry, "cannot write", err);
	return atomic_fetch_sub(&f->left, 1) == 1 ? close_file(x, u.entry, err)
						  : 0;
}

/* Count the units of each extent, which begin where blocks do, and of each file. */
static bool count_units(struct extracting *x)
{
	const struct pack_index *const index = &x->p->x;
	const uint32_t n = index->nextents;

	x->first = calloc((size_t)n + 1, sizeof(*x->first));
	x->files = calloc(index->nentries, sizeof(*x->files));
	if (!x->first || !x->files)
		return false;
	for (uint32_t i = 0; i < n; i++)
		x->first[i + 1] = x->first[i] +
				  (index->extents[i].len + UNIT - 1) / UNIT;
	for (uint32_t i = 0; i < index->nentries; i++) {
		const struct pack_entry *const e = &index->entries[i];

		x->files[i].fd = -1;
		x->files[i].left =
			(size_t)(x->first[e->first + e->n] - x->first[e->first]);
	}
	return true;
}

static int make_dirs(const struct extracting *x, struct errmsg *err)
{
	int rc = 0;

	for (uint32_t i = 1; !rc && i < x->p->x.nentries; i++)
		if (S_ISDIR(x->p->x.entries[i].mode) &&
		    mkdirat(x->dir, x->p->x.entries[i].name, 0700) < 0)
			rc = extract_fail(x, i, "cannot create", err);
	return rc;
}

static int make_empty_files(struct extracting *x, struct errmsg *err)
{
	int rc = 0;

	for (uint32_t i = 0; !rc && i < x->p->x.nentries; i++) {
		const struct pack_entry *const e = &x->p->x.entries[i];

		if (S_ISREG(e->mode) && e->size == 0) {
			rc = create_file(x, i, err);
			if (!rc)
				rc = close_file(x, i, err);
		}
	}
	return rc;
}

/* Modes and times of directories, when all is in them. */
static int finish_dirs(struct extracting *x, struct errmsg *err)
{
	int rc = 0;

	for (uint32_t i = x->p->x.nentries; !rc && i-- > 0;) {
		const struct pack_entry *const e = &x->p->x.entries[i];

		if (!S_ISDIR(e->mode))
			continue;
		x->files[i].fd = openat(x->dir, *e->name ? e->name : ".",
					O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		rc = x->files[i].fd < 0
			     ? extract_fail(x, i, "cannot open", err)
			     : close_file(x, i, err);
	}
	return rc;
}

static int extract_all(struct extracting *x, struct errmsg *err)
{
	static const struct parallel_steps steps = {
		.begin = extract_begin,
		.end = free,
		.work = extract_read,
		.commit = extract_commit,
		.finish = extract_write,
	};
	int rc;

	x->hash = XXH3_createState();
	if (!x->hash || !count_units(x))
		return errmsg_nomem(err, NULL);
	if (x->dir >= 0) {
		rc = make_dirs(x, err);
		if (!rc)
			rc = make_empty_files(x, err);
		if (rc)
			return rc;
	}
	rc = parallel_in_order((size_t)x->first[x->p->x.nextents], x->o->width,
			       &steps, x, err);
	return !rc && x->dir >= 0 ? finish_dirs(x, err) : rc;
}

int pack_extract(struct pack *p, int dirfd,
		 const struct pack_extract_options *o, struct errmsg *err)
{
	struct extracting x = { .p = p, .dir = dirfd, .o = o };
	int rc;

	rc = extract_all(&x, err);
	for (uint32_t i = 0; x.files && i < p->x.nentries; i++)
		if (x.files[i].fd >= 0)
			close(x.files[i].fd);
	XXH3_freeState(x.hash);
	free(x.first);
	free(x.files);
	return rc;
}
