/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the files that a plan was made of are still there. */
#include "fs/tree/saved_again.h"

#include <stddef.h>
#include <string.h>

#include "ckpt/base/source.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/zero/checkpoint.h"

/* Weights of a format that is preferred may have been added to others. */
static bool is_other_layout(const struct shardcache *c, const char *path)
{
	const char *const name = hfdir_layout(path);
	const char *const slash = strrchr(shardcache_path(c, 0), '/');

	return !name || (!hfdir_layout_is_index(name) &&
			 strcmp(slash ? slash + 1 : "", name) != 0);
}

bool saved_again_maybe(struct plan *p, const char *path)
{
	const struct zero_checkpoint *const r = plan_zckpt(p);
	struct shardcache *const c = plan_shards(p);
	const uint32_t shards[] = {
		0, (uint32_t)(r ? r->dir.noptim : shardcache_count(c) - 1)
	};

	if (!r && is_other_layout(c, path))
		return true;
	/* A tag's first optimizer shard and first model states.  A check that a reader made
	 * a moment ago is not repeated. */
	return shardcache_check_paths(c, shards, 2, NULL) != 0;
}

struct sum {
	const struct shardcache *planned;
	size_t n;
	uint32_t sum;
	bool same; /* so far */
};

static void sum_add(struct sum *s, const struct fileid *id)
{
	s->sum = crc32_add(s->sum, id, sizeof(*id));
	s->same = s->same && s->n < shardcache_count(s->planned) &&
		  fileid_unchanged(shardcache_id(s->planned, (uint32_t)s->n), id);
	s->n++;
}

static int sum_tag(struct sum *s, const char *path)
{
	struct tagdir d;
	int rc = tagdir_scan(&d, path, NULL);

	if (rc)
		return rc;
	for (size_t i = 0; i < tagdir_count(&d); i++)
		sum_add(s, &tagdir_file(&d, i)->file);
	tagdir_done(&d);
	return 0;
}

static int sum_weights(struct sum *s, const char *path)
{
	struct hfdir d;
	int rc = hfdir_open(&d, path, NULL);

	if (rc)
		return rc;
	for (size_t i = 0; i < d.nfiles; i++)
		sum_add(s, &d.files[i].file);
	hfdir_done(&d);
	return 0;
}

uint32_t saved_again_sum(struct plan *p, const char *path)
{
	struct sum s = { .planned = plan_shards(p), .same = true };
	const int rc = plan_zckpt(p) ? sum_tag(&s, path) : sum_weights(&s, path);

	if (rc || (s.same && s.n == shardcache_count(s.planned)))
		return 0;
	return s.sum;
}
