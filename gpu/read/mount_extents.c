/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Past the mount.  A mount of ucfs tells where each run of a file's bytes
 * lies; reading them there saves the way through the kernel and the server
 * and back, and a rank that needs a part of a tensor asks only the shards
 * that have it.
 *
 * A shard is opened once, and compared with what the mount knows of it.  One
 * that cannot be opened here (another machine's path, another user's file) is
 * read through the mount.
 */
#include "gpu/read/mount_extents.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/vfile/ucfs_ioctl.h"

struct origin_file {
	uint32_t number;
	char *path;
	int fd; /* -1: cannot be opened here */
	struct fileid id;
};

int origin_begin(struct origin *o, int fd, struct errmsg *err)
{
	o->fd = fd;
	if (!o->extents)
		o->extents = malloc(sizeof(*o->extents));
	if (!o->extents)
		return errmsg_set(err, -ENOMEM, "out of memory");
	o->extents->count = 0;
	return 0;
}

/* Ask for extents from byte `off` on; how many there are. */
static uint32_t ask(struct origin *o, uint64_t off)
{
	struct ucfs_extents *x = o->extents;

	x->version = UCFS_EXTENTS_VERSION;
	x->start = off;
	if (ioctl(o->fd, UCFS_IOC_EXTENTS, x) < 0 || x->count > UCFS_EXTENTS_MAX)
		x->count = 0;
	return x->count;
}

bool origin_storage(struct origin *o, uint64_t *start, uint64_t *len)
{
	uint64_t end = 0;
	unsigned literals = 0;

	for (uint64_t at = 0; ask(o, at); at = o->extents->next) {
		for (uint32_t i = 0; i < o->extents->count; i++) {
			const struct ucfs_extent *e = &o->extents->extent[i];

			if (e->kind != UCFS_EXTENT_LITERAL)
				continue;
			if (literals++ == 0)
				*start = e->offset + e->length;
			else
				end = e->offset;
		}
		/* What is asked once more would take the place of these. */
		if (o->extents->next <= at ||
		    o->extents->next >= o->extents->size)
			break;
	}
	*len = end - *start;
	return literals == 2 && end > *start;
}

/* Is the shard behind `f` the one that the mount has planned with? */
static int check(const struct origin_file *f, const struct ucfs_source *s,
		 struct errmsg *err)
{
	const struct fileid was = { .dev = s->dev,
				    .ino = s->ino,
				    .size = s->size,
				    .mtime_ns = s->mtime_ns };

	if (fileid_equal(&f->id, &was))
		return 0;
	return fileid_report_change(f->path, &was, &f->id, err);
}

static struct origin_file *add_file(struct origin *o, uint32_t number,
				    const char *path)
{
	struct origin_file *grown =
		realloc(o->files, (o->nfiles + 1) * sizeof(*grown));
	struct origin_file *f;
	struct stat st;

	if (!grown)
		return NULL;
	o->files = grown;
	f = &grown[o->nfiles];
	*f = (struct origin_file){ .number = number, .path = strdup(path) };
	if (!f->path)
		return NULL;
	f->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (f->fd >= 0 && fstat(f->fd, &st) < 0) {
		close(f->fd);
		f->fd = -1;
	}
	if (f->fd >= 0)
		fileid_from_stat(&st, &f->id);
	o->nfiles++;
	return f;
}

/* The shard with a number in the mount; a run that is mounted has several
 * checkpoints, whose numbers are their own, so the path tells them apart. */
static int find_file(struct origin *o, uint32_t number,
		     const struct origin_file **out, struct errmsg *err)
{
	struct ucfs_source *s = calloc(1, sizeof(*s));
	struct origin_file *f = NULL;
	int rc = 0;

	if (!s)
		return errmsg_set(err, -ENOMEM, "out of memory");
	s->version = UCFS_EXTENTS_VERSION;
	s->source = number;
	if (ioctl(o->fd, UCFS_IOC_SOURCE, s) == 0) {
		for (size_t i = 0; i < o->nfiles && !f; i++)
			if (o->files[i].number == number &&
			    strcmp(o->files[i].path, s->path) == 0)
				f = &o->files[i];
		if (!f && !(f = add_file(o, number, s->path)))
			rc = errmsg_set(err, -ENOMEM, "out of memory");
		else if (f->fd >= 0)
			rc = check(f, s, err);
	}
	free(s);
	*out = f && f->fd >= 0 ? f : NULL;
	return rc;
}

/* The extent that has byte `off`; NULL if the mount does not tell. */
static const struct ucfs_extent *find_extent(struct origin *o, uint64_t off)
{
	struct ucfs_extents *x = o->extents;

	for (int asked = 0; asked < 2; asked++) {
		for (uint32_t i = 0; i < x->count; i++)
			if (off >= x->extent[i].offset &&
			    off - x->extent[i].offset < x->extent[i].length)
				return &x->extent[i];
		if (!ask(o, off))
			break;
	}
	return NULL;
}

int origin_find(struct origin *o, const struct source *file, uint64_t off,
		size_t len, struct origin_run *run, struct errmsg *err)
{
	const struct ucfs_extent *e = find_extent(o, off);
	const struct origin_file *f = NULL;
	int rc = 0;

	*run = (struct origin_run){ .file = *file, .off = off, .len = len };
	if (e && e->offset + e->length - off < len)
		run->len = e->offset + e->length - off;
	if (e && e->kind == UCFS_EXTENT_SOURCE)
		rc = find_file(o, e->source, &f, err);
	if (!f || rc)
		return rc;
	run->file = (struct source){ .name = f->path,
				     .size = f->id.size,
				     .fd = f->fd };
	run->off = e->source_offset + (off - e->offset);
	o->direct += run->len;
	return 0;
}

void origin_done(struct origin *o)
{
	for (size_t i = 0; i < o->nfiles; i++) {
		free(o->files[i].path);
		if (o->files[i].fd >= 0)
			close(o->files[i].fd);
	}
	free(o->files);
	free(o->extents);
	*o = (struct origin){ 0 };
}
