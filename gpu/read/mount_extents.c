/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads past the mount.  A ucfs mount reports where each range of a file's
 * bytes lies.  Reading those from the shards avoids the way through the kernel
 * and the server, and a rank that needs part of a tensor reads only the shards
 * that contain it.
 *
 * The first thread that needs a shard asks the mount for it, opens it, and compares it
 * with the identity that the mount reports; others wait for that.  A shard that cannot
 * be opened here (a path of another machine, a file of another user) is read through
 * the mount.
 */
#include "gpu/read/mount_extents.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/vfile/ucfs_ioctl.h"

struct mount_shard {
	struct mount_shard *next;
	struct mount_plan plan; /* in which it has this number */
	uint32_t number;
	pthread_mutex_t opening; /* protects the rest until it is opened */
	bool opened;
	char *path;
	int fd; /* -1: cannot be opened here */
	struct fileid id;
};

int mount_extents_begin(struct mount_extents *o, struct mount_shards *shards,
			int fd, struct errmsg *err)
{
	struct stat st = { 0 };

	if (fd >= 0 && fstat(fd, &st) < 0)
		return errmsg_errno(err, "a file of a checkpoint",
				    "cannot stat");
	*o = (struct mount_extents){
		.shards = shards,
		.fd = fd,
		.plan = { st.st_dev, st.st_ino >> UCFS_PLAN_SHIFT },
		.extents = calloc(1, sizeof(*o->extents)),
	};
	return o->extents ? 0 : errmsg_nomem(err, NULL);
}

void mount_extents_end(struct mount_extents *o)
{
	free(o->extents);
	o->extents = NULL;
}

/* Request extents from byte `off` on.  Returns their number. */
static uint32_t mount_extents_ask(struct mount_extents *o, uint64_t off)
{
	struct ucfs_extents *x = o->extents;

	x->version = UCFS_EXTENTS_VERSION;
	x->start = off;
	if (ioctl(o->fd, UCFS_IOC_EXTENTS, x) < 0 || x->count > UCFS_EXTENTS_MAX)
		x->count = 0;
	return x->count;
}

bool mount_extents_storage(struct mount_extents *o, uint64_t *start,
			   uint64_t *len)
{
	uint64_t end = 0;
	unsigned literals = 0;

	for (uint64_t at = 0; mount_extents_ask(o, at); at = o->extents->next) {
		for (uint32_t i = 0; i < o->extents->count; i++) {
			const struct ucfs_extent *e = &o->extents->extent[i];

			if (e->kind != UCFS_EXTENT_LITERAL)
				continue;
			if (literals++ == 0)
				*start = e->offset + e->length;
			else
				end = e->offset;
		}
		/* The next request overwrites these extents. */
		if (o->extents->next <= at ||
		    o->extents->next >= o->extents->size)
			break;
	}
	*len = end - *start;
	return literals == 2 && end > *start;
}

bool mount_extents_head(struct mount_extents *o, void *buf, size_t len)
{
	struct ucfs_literal l = { .version = UCFS_EXTENTS_VERSION };

	if (ioctl(o->fd, UCFS_IOC_LITERAL, &l) < 0 || l.count < len)
		return false;
	memcpy(buf, l.bytes, len);
	return true;
}

/* Ask the mount for a shard, open it, and compare it with the file that the mount
 * planned with.  It is left closed if the mount does not know it or it cannot be
 * opened. */
static int open_shard(const struct mount_extents *o, struct mount_shard *f,
		      struct errmsg *err)
{
	struct ucfs_source s = { .version = UCFS_EXTENTS_VERSION,
				 .source = f->number };
	struct fileid was;
	struct stat st;

	if (ioctl(o->fd, UCFS_IOC_SOURCE, &s) < 0)
		return 0;
	f->path = strdup(s.path);
	if (!f->path)
		return errmsg_nomem(err, NULL);
	f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
	if (f->fd < 0)
		return 0;
	if (fstat(f->fd, &st) < 0)
		return errmsg_errno(err, f->path, "cannot stat");
	fileid_from_stat(&st, &f->id);
	was = (struct fileid){ .dev = s.dev,
			       .ino = s.ino,
			       .size = s.size,
			       .mtime_ns = s.mtime_ns };
	if (fileid_equal(&f->id, &was))
		return 0;
	return fileid_report_change(f->path, &was, &f->id, err);
}

static void close_shard(struct mount_shard *f)
{
	if (f->fd >= 0)
		close(f->fd);
	free(f->path);
	f->fd = -1;
	f->path = NULL;
}

/* Open a shard unless it is open. */
static int open_once(const struct mount_extents *o, struct mount_shard *f,
		     struct errmsg *err)
{
	int rc = 0;

	pthread_mutex_lock(&f->opening);
	if (!f->opened) {
		rc = open_shard(o, f, err);
		if (rc)
			close_shard(f);
		f->opened = !rc;
	}
	pthread_mutex_unlock(&f->opening);
	return rc;
}

static void free_shard(struct mount_shard *f)
{
	close_shard(f);
	pthread_mutex_destroy(&f->opening);
	free(f);
}

/* Find a shard of a list by its number in a plan. */
static struct mount_shard *find_shard(struct mount_shard *f,
				      const struct mount_plan *plan,
				      uint32_t number)
{
	while (f && (f->number != number || f->plan.dev != plan->dev ||
		     f->plan.number != plan->number))
		f = f->next;
	return f;
}

/* Add a shard, unless another thread has added it meanwhile.  NULL when memory runs
 * out. */
static struct mount_shard *add_shard(struct mount_shards *o,
				     const struct mount_plan *plan,
				     uint32_t number)
{
	struct mount_shard *first = atomic_load(&o->first), *same;
	struct mount_shard *const f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	*f = (struct mount_shard){ .plan = *plan, .number = number, .fd = -1 };
	pthread_mutex_init(&f->opening, NULL);
	do {
		same = find_shard(first, plan, number);
		f->next = first;
	} while (!same && !atomic_compare_exchange_strong(&o->first, &first, f));
	if (!same)
		return f;
	free_shard(f);
	return same;
}

/* The shard of this number, open; NULL if it cannot be opened here. */
static int mount_extents_find_shard(struct mount_extents *o, uint32_t number,
				    const struct mount_shard **out,
				    struct errmsg *err)
{
	struct mount_shard *f =
		find_shard(atomic_load(&o->shards->first), &o->plan, number);
	int rc;

	if (!f && !(f = add_shard(o->shards, &o->plan, number)))
		return errmsg_nomem(err, NULL);
	rc = open_once(o, f, err);
	*out = !rc && f->fd >= 0 ? f : NULL;
	return rc;
}

/* The extent that contains byte `off`; NULL if the mount reports none. */
static const struct ucfs_extent *find_extent(struct mount_extents *o,
					     uint64_t off)
{
	struct ucfs_extents *x = o->extents;

	for (int asked = 0; asked < 2; asked++) {
		for (uint32_t i = 0; i < x->count; i++)
			if (off >= x->extent[i].offset &&
			    off - x->extent[i].offset < x->extent[i].length)
				return &x->extent[i];
		if (!mount_extents_ask(o, off))
			break;
	}
	return NULL;
}

int mount_extents_find(struct mount_extents *o, const struct source *file,
		       uint64_t off, size_t len, struct mount_extents_run *run,
		       struct errmsg *err)
{
	const struct ucfs_extent *e = find_extent(o, off);
	const struct mount_shard *f = NULL;
	int rc = 0;

	*run = (struct mount_extents_run){ .file = *file,
					   .off = off,
					   .len = len };
	if (e && e->offset + e->length - off < len)
		run->len = e->offset + e->length - off;
	if (e && e->kind == UCFS_EXTENT_SOURCE)
		rc = mount_extents_find_shard(o, e->source, &f, err);
	if (!f || rc)
		return rc;
	run->file = (struct source){ .name = f->path,
				     .size = f->id.size,
				     .fd = f->fd };
	run->off = e->source_offset + (off - e->offset);
	run->direct = true;
	return 0;
}

void mount_shards_done(struct mount_shards *o)
{
	struct mount_shard *f;

	while ((f = atomic_load(&o->first))) {
		atomic_store(&o->first, f->next);
		free_shard(f);
	}
}
