/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads past the mount.  A ucfs mount reports where each range of a file's bytes lies.  Reading the
 * shards directly bypasses FUSE and the server, and a rank that needs part of a tensor reads only
 * the shards that contain that part.
 *
 * The first thread that needs a shard asks the mount for it, opens it, and compares it with the
 * identity that the mount reports; other threads wait.  A shard that cannot be opened here (a path
 * of another machine, a file of another user) is read through the mount.
 */
#include "gpu/load/load_mount.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/zip.h"
#include "gpu/load/load_impl.h"

struct mount_shard {
	struct mount_shard *next;
	uint64_t dev, plan; /* of the mount; the shard's number in it */
	uint32_t number;
	pthread_mutex_t opening; /* protects the fields below while the shard is being opened */
	bool opened;
	struct source file; /* owns its name; not open if it cannot be opened here */
};

/* Request the extents that start at byte `off`.  Returns their number. */
static uint32_t mount_extents_ask(struct mount_extents *o, uint64_t off)
{
	struct ucfs_extents *const x = &o->some;

	x->version = UCFS_EXTENTS_VERSION;
	x->start = off;
	if (ioctl(o->file->fd, UCFS_IOC_EXTENTS, x) < 0 || x->count > UCFS_EXTENTS_MAX)
		x->count = 0;
	return x->count;
}

/* The file's only storage lies between the first extent and the last. */
bool mount_extents_head(struct mount_extents *o, struct ucfs_literal *head, uint64_t *len)
{
	const struct ucfs_extents *const x = &o->some;
	const struct ucfs_extent *last;
	uint64_t start;

	*head = (struct ucfs_literal){ .version = UCFS_EXTENTS_VERSION };
	if (!mount_extents_ask(o, 0) || x->extent[0].kind != UCFS_EXTENT_LITERAL)
		return false;
	start = x->extent[0].length;
	if (x->next < x->size && !mount_extents_ask(o, x->size - 1))
		return false;
	last = &x->extent[x->count - 1];
	*len = last->offset - start;
	return last->kind == UCFS_EXTENT_LITERAL && last->offset > start &&
	       ioctl(o->file->fd, UCFS_IOC_LITERAL, head) == 0 && head->count == start &&
	       start <= sizeof(head->bytes);
}

/* The first record of a torch.save file is the pickle. */
bool mount_head_object(struct span head, const char *name, struct arena *a, struct value **root)
{
	size_t at;

	if (head.len < ZIP_LOCAL_LEN || get_le32(head.p) != ZIP_LOCAL_SIG)
		return false;
	at = ZIP_LOCAL_LEN + get_le16(head.p + 26) + get_le16(head.p + 28);
	return at < head.len &&
	       !pickle_load((struct span){ head.p + at, head.len - at }, name, a, root, NULL);
}

static void close_shard(struct mount_shard *f)
{
	source_close(&f->file);
	free((char *)f->file.name);
	f->file.name = NULL;
}

/* Get the shard from the mount, open it, and compare it with the file that the mount planned with.
 * It stays closed if the mount does not know it or it cannot be opened. */
static int open_shard(const struct mount_extents *o, struct mount_shard *f, struct errmsg *err)
{
	struct ucfs_source s = { .version = UCFS_EXTENTS_VERSION, .source = f->number };
	struct source *const file = &f->file;
	struct fileid was;
	char *path;
	int rc;

	if (ioctl(o->file->fd, UCFS_IOC_SOURCE, &s) < 0)
		return 0;
	path = strdup(s.path);
	if (!path)
		return errmsg_nomem(err, NULL);
	if (source_open(file, path, NULL)) {
		free(path);
		return 0;
	}
	was = (struct fileid){ .dev = s.dev, .ino = s.ino, .size = s.size, .mtime_ns = s.mtime_ns };
	if (fileid_equal(&file->id, &was))
		return 0;
	rc = fileid_report_change(path, &was, &file->id, err);
	close_shard(f);
	return rc;
}

/* Find the shard of this number, or add it.  NULL when memory runs out. */
static struct mount_shard *find_shard(const struct mount_extents *o, uint32_t number)
{
	const uint64_t dev = o->file->id.dev;
	const uint64_t plan = o->file->id.ino >> UCFS_PLAN_SHIFT;
	struct mount_shard *f;

	pthread_mutex_lock(&o->shards->lock);
	f = o->shards->first;
	while (f && (f->number != number || f->dev != dev || f->plan != plan))
		f = f->next;
	if (!f && (f = malloc(sizeof(*f)))) {
		*f = (struct mount_shard){
			.next = o->shards->first,
			.dev = dev,
			.plan = plan,
			.number = number,
			.opening = PTHREAD_MUTEX_INITIALIZER,
			.file = { .fd = -1 },
		};
		o->shards->first = f;
	}
	pthread_mutex_unlock(&o->shards->lock);
	return f;
}

/* The extent that contains byte `off`; NULL if the mount reports none. */
static const struct ucfs_extent *find_extent(struct mount_extents *o, uint64_t off)
{
	const struct ucfs_extents *const x = &o->some;

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

int mount_extents_find(struct mount_extents *o, struct load_run *run, struct errmsg *err)
{
	const struct ucfs_extent *e = find_extent(o, run->off);
	const uint64_t left = e ? e->offset + e->length - run->off : UINT64_MAX;
	const size_t size = dtype_size(run->dtype);
	struct mount_shard *f;
	int rc = 0;

	if (left < size)
		return errmsg_set(err, -EIO, "%s: an element spans two extents", o->file->name);
	if (left / size < run->n)
		run->n = (size_t)(left / size);
	if (!e || e->kind != UCFS_EXTENT_SOURCE)
		return 0;
	f = find_shard(o, e->source);
	if (!f)
		return errmsg_nomem(err, NULL);
	pthread_mutex_lock(&f->opening);
	if (!f->opened)
		rc = open_shard(o, f, err);
	f->opened = !rc;
	pthread_mutex_unlock(&f->opening);
	if (rc || f->file.fd < 0)
		return rc;
	run->file = f->file;
	run->off = e->source_offset + (run->off - e->offset);
	run->direct = true;
	return 0;
}

void mount_shards_done(struct mount_shards *o)
{
	struct mount_shard *f;

	while ((f = o->first)) {
		o->first = f->next;
		close_shard(f);
		pthread_mutex_destroy(&f->opening);
		free(f);
	}
	pthread_mutex_destroy(&o->lock);
}
