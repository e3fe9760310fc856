/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/vfile/gather.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/faketree.h"
#include "tests/support/unit.h"

uint64_t faketree_size(uint64_t ino)
{
	return ino == SMALL   ? MIB - 1
	       : ino == LARGE ? 4 * MIB
			      : MIB + ino * 100;
}

int tree_file_open(struct tree *t, uint64_t ino, struct tree_file *out,
		   struct errmsg *err)
{
	(void)err;
	/* The plan only matters for not being NULL. */
	*out = (struct tree_file){ .v = t->v[ino],
				   .fd = -1,
				   .plan = (struct plan *)t };
	return 0;
}

void tree_file_close(struct tree_file *f)
{
	(void)f;
}

int tree_next_file(struct tree *t, uint64_t ino, unsigned order, uint64_t min,
		   uint64_t *next, uint64_t *size)
{
	(void)t;
	(void)min;
	if (order != 0 || ino >= FILES)
		return -ENOENT;
	*next = ino + 1;
	*size = faketree_size(ino + 1);
	return 0;
}

void tree_warm(struct tree *t)
{
	(void)t; /* it is near */
}

static uint32_t add_shard(struct tree *t, const char *name, uint8_t byte)
{
	static uint8_t bytes[2 * MIB];
	char path[4096];
	struct fileid id;
	struct stat st;

	memset(bytes, byte, sizeof(bytes));
	snprintf(path, sizeof(path), "%s/%s", t->dir, name);
	mkpt_save(path, (const char *)bytes, sizeof(bytes));
	assert_int_equal(stat(path, &st), 0);
	fileid_from_stat(&st, &id);
	return (uint32_t)shardcache_add(t->shards, path, &id);
}

static struct vfile *of_bytes(uint64_t ino)
{
	struct bytebuf bytes = { 0 };
	void *const p = malloc(faketree_size(ino));

	memset(p, (int)ino, faketree_size(ino));
	bytebuf_add(&bytes, p, faketree_size(ino));
	free(p);
	return vfile_new_bytes(&bytes, NULL);
}

static struct vfile *of_truncated_shard(struct tree *t)
{
	const uint32_t shard = add_shard(t, "broken", BROKEN);
	struct extent_map map = { 0 };
	struct gathers none = { 0 };
	struct bytebuf head = { 0 };
	struct vfile *v;
	char path[4096];

	bytebuf_add(&head, "head", 4);
	assert_true(extent_add(&map, EXTENT_SHARD, faketree_size(BROKEN) - 4,
			       shard, 0, DTYPE_U8));
	v = vfile_new_tensors(t->shards, &head, &map, 1, &none, NULL);
	extent_done(&map);
	snprintf(path, sizeof(path), "%s/broken", t->dir);
	assert_int_equal(truncate(path, 10), 0);
	return v;
}

void faketree_make(struct tree *t)
{
	t->dir = mkckpt_new_dir();
	t->shards = shardcache_new();
	for (uint64_t i = 1; i <= LARGE; i++)
		t->v[i] = of_bytes(i);
	t->v[SHARD] = vfile_new_verbatim(t->shards,
					 add_shard(t, "shard", SHARD), NULL);
	t->v[BROKEN] = of_truncated_shard(t);
	for (uint64_t i = 1; i < INODES; i++)
		assert_non_null(t->v[i]);
}

void faketree_done(struct tree *t)
{
	for (uint64_t i = 1; i < INODES; i++)
		vfile_free(t->v[i]);
	shardcache_free(t->shards);
	mkckpt_free_dir(t->dir);
}
