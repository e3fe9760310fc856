/* SPDX-License-Identifier: Apache-2.0 */
/* The extents of an open file, as returned by the ioctls of a mounted file. */
#include <string.h>

#include "ckpt/commands/api.h"
#include "ckpt/io/shards.h"
#include "ckpt/remote/site.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/ucfs_ioctl.h"

static uint32_t shard_kind(struct shards *c, uint32_t shard)
{
	if (site_is_url(shards_path(c, shard)))
		return UCFS_EXTENT_REMOTE;
	return shards_has_descriptor(c, shard) ? UCFS_EXTENT_SOURCE : UCFS_EXTENT_PACKED;
}

static uint32_t extent_kind(const struct vfile *f, const struct extent *e)
{
	static const uint32_t kinds[] = {
		[EXTENT_LITERAL] = UCFS_EXTENT_LITERAL,
		[EXTENT_SHARD] = UCFS_EXTENT_CAST,
		[EXTENT_ZERO] = UCFS_EXTENT_ZERO,
		[EXTENT_GATHER] = UCFS_EXTENT_GATHER,
	};

	return e->kind == EXTENT_SHARD && !extent_is_cast(e) ? shard_kind(vfile_shards(f), e->shard)
							     : kinds[e->kind];
}

/* Does the file have extents? */
static int check(const struct uckpt_file *f, const void *out)
{
	if (!f || !api_is_open(f->u) || !out)
		return -EINVAL;
	return f->f.v ? 0 : -ENOTTY;
}

int uckpt_file_extents(struct uckpt_file *f, struct ucfs_extents *x)
{
	const struct extent_map *m;
	const int rc = check(f, x);

	if (rc)
		return rc;
	m = vfile_extents(f->f.v);
	x->size = extent_size(m);
	x->count = 0;
	x->next = x->start;
	if (x->version != UCFS_EXTENTS_VERSION)
		return -EINVAL;
	if (x->start >= x->size)
		return 0;
	for (size_t i = extent_find(m, x->start); i < m->n && x->count < UCFS_EXTENTS_MAX; i++) {
		const struct extent *e = &m->v[i];

		x->extent[x->count++] = (struct ucfs_extent){
			.offset = e->start,
			.length = e[1].start - e->start,
			.source_offset = e->kind == EXTENT_SHARD ? e->from : 0,
			.kind = extent_kind(f->f.v, e),
			.source = e->kind == EXTENT_SHARD ? e->shard : 0,
		};
		x->next = e[1].start;
	}
	return 0;
}

int uckpt_file_source(struct uckpt_file *f, struct ucfs_source *s)
{
	const struct shards *c;
	const struct fileid *id;
	const char *path;
	const int rc = check(f, s);

	if (rc)
		return rc;
	c = vfile_shards(f->f.v);
	if (s->version != UCFS_EXTENTS_VERSION)
		return -EINVAL;
	if (!c || s->source >= shards_count(c))
		return -ENOENT;
	id = shards_id(c, s->source);
	path = shards_path(c, s->source);
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

int uckpt_file_literal(struct uckpt_file *f, struct ucfs_literal *l)
{
	const struct extent_map *m;
	const struct extent *e;
	uint64_t left;
	int64_t n;
	const int rc = check(f, l);

	if (rc)
		return rc;
	m = vfile_extents(f->f.v);
	if (l->version != UCFS_EXTENTS_VERSION)
		return -EINVAL;
	if (l->offset >= extent_size(m))
		return -ENOENT;
	e = &m->v[extent_find(m, l->offset)];
	if (e->kind != EXTENT_LITERAL)
		return -ENOENT;
	left = e[1].start - l->offset;
	n = vfile_read(f->f.v, l->bytes, left < sizeof(l->bytes) ? (size_t)left : sizeof(l->bytes),
		       l->offset, NULL);
	if (n < 0)
		return (int)n;
	l->count = (uint32_t)n;
	return 0;
}
