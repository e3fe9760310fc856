/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads past the mount.  A ucfs mount reports where each range of a file's bytes lies.  Reading the
 * shards directly bypasses FUSE and the server, and a rank that needs part of a tensor reads only
 * the shards that contain that part.
 */
#include "gpu/load/load_mount.h"

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/zip.h"
#include "ckpt/io/shards.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/ucfs_ioctl.h"

int mount_open(struct mount *m, struct uckpt *u, const struct source *file, struct errmsg *err)
{
	struct ucfs_source s = { .version = UCFS_EXTENTS_VERSION };

	*m = (struct mount){ .dev = file->id.dev, .plan = file->id.ino >> UCFS_PLAN_SHIFT };
	for (; ioctl(file->fd, UCFS_IOC_SOURCE, &s) == 0; s.source++) {
		const struct fileid id = {
			.dev = s.dev, .ino = s.ino, .size = s.size, .mtime_ns = s.mtime_ns
		};

		m->shards = m->shards ?: shards_new(u);
		if (!m->shards || shards_add(m->shards, s.path, &id) < 0)
			return errmsg_nomem(err, file->name);
	}
	return 0;
}

void mount_close(struct mount *m)
{
	shards_free(m->shards);
}

static bool add_extent(const struct mount *m, const struct ucfs_extent *e, struct extent_map *out)
{
	if (e->kind == UCFS_EXTENT_SOURCE && e->source < shards_count(m->shards))
		return extent_add(out, EXTENT_SHARD, e->length, e->source, e->source_offset,
				  DTYPE_U8);
	return extent_add(out,
			  e->kind == UCFS_EXTENT_LITERAL ? EXTENT_LITERAL
			  : e->kind == UCFS_EXTENT_ZERO  ? EXTENT_ZERO
							 : EXTENT_GATHER,
			  e->length, 0, e->offset, DTYPE_U8);
}

int mount_extents(const struct mount *m, const struct source *file, struct extent_map *out,
		  struct errmsg *err)
{
	struct ucfs_extents x = { .version = UCFS_EXTENTS_VERSION };

	if (!m->shards || file->id.dev != m->dev || file->id.ino >> UCFS_PLAN_SHIFT != m->plan)
		return 0;
	do {
		x.start = extent_size(out);
		if (ioctl(file->fd, UCFS_IOC_EXTENTS, &x) < 0 || x.count > UCFS_EXTENTS_MAX)
			break;
		for (uint32_t i = 0; i < x.count; i++)
			if (!add_extent(m, &x.extent[i], out))
				return errmsg_nomem(err, file->name);
	} while (extent_size(out) > x.start && extent_size(out) < file->size);
	if (extent_size(out) != file->size)
		extent_done(out);
	return 0;
}

bool mount_head(const struct source *file, const struct extent_map *map, struct arena *a,
		struct value **root)
{
	struct ucfs_literal head = { .version = UCFS_EXTENTS_VERSION };

	return map->n > 2 && map->v[0].kind == EXTENT_LITERAL &&
	       map->v[map->n - 1].kind == EXTENT_LITERAL && map->v[1].start <= sizeof(head.bytes) &&
	       ioctl(file->fd, UCFS_IOC_LITERAL, &head) == 0 && head.count == map->v[1].start &&
	       mount_head_object((struct span){ head.bytes, head.count }, file->name, a, root);
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
