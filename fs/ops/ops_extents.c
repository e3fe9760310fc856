/* SPDX-License-Identifier: Apache-2.0 */
/* The ioctls that report the extents of an open file (ckpt/vfile/ucfs_ioctl.h). */
#include <errno.h>
#include <fuse_lowlevel.h>
#include <string.h>

#include "ckpt/remote/site.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/ucfs_ioctl.h"
#include "ckpt/vfile/vfile.h"
#include "fs/ops/ops_impl.h"

static uint32_t shard_kind(struct shardcache *c, uint32_t shard)
{
	if (site_is_url(shardcache_path(c, shard)))
		return UCFS_EXTENT_REMOTE;
	return shardcache_has_descriptor(c, shard) ? UCFS_EXTENT_SOURCE
						   : UCFS_EXTENT_PACKED;
}

static uint32_t ops_extent_kind(const struct vfile *f, const struct extent *e)
{
	static const uint32_t kinds[] = {
		[EXTENT_LITERAL] = UCFS_EXTENT_LITERAL,
		[EXTENT_SHARD] = UCFS_EXTENT_CAST,
		[EXTENT_ZERO] = UCFS_EXTENT_ZERO,
		[EXTENT_GATHER] = UCFS_EXTENT_GATHER,
	};

	return e->kind == EXTENT_SHARD && !extent_is_cast(e)
		       ? shard_kind(vfile_shards(f), e->shard)
		       : kinds[e->kind];
}

static int get_extents(const struct tree_file *f, struct ucfs_extents *x)
{
	const struct extent_map *const m = vfile_extents(f->v);

	x->size = extent_size(m);
	x->count = 0;
	x->next = x->start;
	if (x->version != UCFS_EXTENTS_VERSION)
		return -EINVAL;
	if (x->start >= x->size)
		return 0;
	for (size_t i = extent_find(m, x->start);
	     i < m->n && x->count < UCFS_EXTENTS_MAX; i++) {
		const struct extent *const e = &m->v[i];

		x->extent[x->count++] = (struct ucfs_extent){
			.offset = e->start,
			.length = e[1].start - e->start,
			.source_offset = e->kind == EXTENT_SHARD ? e->from : 0,
			.kind = ops_extent_kind(f->v, e),
			.source = e->kind == EXTENT_SHARD ? e->shard : 0,
		};
		x->next = e[1].start;
	}
	return 0;
}

static int get_source(const struct tree_file *f, struct ucfs_source *s)
{
	const struct shardcache *const c = vfile_shards(f->v);
	const struct fileid *id;
	const char *path;

	if (s->version != UCFS_EXTENTS_VERSION)
		return -EINVAL;
	if (!c || s->source >= shardcache_count(c))
		return -ENOENT;
	id = shardcache_id(c, s->source);
	path = shardcache_path(c, s->source);
	if (strlen(path) >= sizeof(s->path))
		return -ENAMETOOLONG;
	s->dev = id->dev;
	s->ino = id->ino;
	s->size = id->size;
	s->mtime_ns = id->mtime_ns;
	memset(s->path, 0, sizeof(s->path));
	strcpy(s->path, path);
	return 0;
}

static int get_literal(const struct tree_file *f, struct ucfs_literal *l)
{
	const struct extent_map *const m = vfile_extents(f->v);
	const struct extent *e;
	uint64_t left;
	int64_t n;

	if (l->version != UCFS_EXTENTS_VERSION)
		return -EINVAL;
	if (l->offset >= extent_size(m))
		return -ENOENT;
	e = &m->v[extent_find(m, l->offset)];
	if (e->kind != EXTENT_LITERAL)
		return -ENOENT;
	left = e[1].start - l->offset;
	n = vfile_read(f->v, l->bytes,
		       left < sizeof(l->bytes) ? (size_t)left : sizeof(l->bytes),
		       l->offset, NULL);
	if (n < 0)
		return (int)n;
	l->count = (uint32_t)n;
	return 0;
}

void ops_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
	       struct fuse_file_info *fi, unsigned flags, const void *in,
	       size_t in_size, size_t out_size)
{
	/* Directories have no struct handle. */
	const struct tree_file *const f =
		flags & FUSE_IOCTL_DIR ? NULL : &ops_handle(req, fi)->f;
	union {
		struct ucfs_extents extents;
		struct ucfs_source source;
		struct ucfs_literal literal;
	} u;
	size_t size;
	int rc = -ENOTTY;

	(void)ino;
	(void)arg;
	size = cmd == UCFS_IOC_EXTENTS   ? sizeof(u.extents)
	       : cmd == UCFS_IOC_SOURCE  ? sizeof(u.source)
	       : cmd == UCFS_IOC_LITERAL ? sizeof(u.literal)
					 : 0;
	if (size && f && f->v && in_size >= size && out_size >= size) {
		memcpy(&u, in, size);
		rc = cmd == UCFS_IOC_EXTENTS  ? get_extents(f, &u.extents)
		     : cmd == UCFS_IOC_SOURCE ? get_source(f, &u.source)
					      : get_literal(f, &u.literal);
	}
	if (rc)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_ioctl(req, 0, &u, size);
}
