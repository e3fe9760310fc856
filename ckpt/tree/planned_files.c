/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/tree/planned_files.h"

#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/files/files.h"
#include "ckpt/remote/site.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/zero/complete.h"

/* All files of a tag that was written to so lately are checked before it is listed: one may
 * be half-written.  Later, each is checked when it is read. */
#define SETTLED_SECONDS 600

/* A rank that has written its model states begins so soon to write its shard. */
#define OPTIMIZER_SECONDS 60

/* Could a Hugging Face directory have another layout than that of its plan?  Weights of
 * a format that is preferred may have been added to others. */
static bool is_other_layout(const struct shardcache *c, const char *path)
{
	const char *const slash = strrchr(shardcache_path(c, 0), '/');

	return !hfdir_is_found_by(shardcache_context(c), path,
				  slash ? slash + 1 : "");
}

/* Are all files of a plan there, as far as their inodes, sizes and times show? */
static bool are_all_there(struct shardcache *c)
{
	for (uint32_t i = 0; i < shardcache_count(c); i++) {
		struct fileid now;
		struct stat st;

		if (files_stat(shardcache_context(c), shardcache_path(c, i), &st, NULL))
			return false;
		fileid_from_stat(&st, &now);
		if (!fileid_equal(shardcache_id(c, i), &now))
			return false;
	}
	return true;
}

bool planned_files_are_there(struct plan *p, const char *path)
{
	const struct zero_checkpoint *const r = plan_zckpt(p);
	struct shardcache *const c = plan_shards(p);
	const uint32_t shards[] = { 0, (uint32_t)(r ? r->dir.noptim
						    : shardcache_count(c) - 1) };

	return (r || !is_other_layout(c, path)) &&
	       (!r || far_is_far(&r->far) || site_is_url(path) || are_all_there(c)) &&
	       shardcache_check_paths(c, shards, 2, NULL) == 0;
}

struct sum {
	const struct shardcache *planned;
	size_t n;
	uint32_t sum;
	bool same; /* so far */
};

/* Files that the plan leaves out, of a former save, may lie between its own. */
static void sum_add(struct sum *s, const char *path, const struct fileid *id)
{
	const uint32_t next = (uint32_t)s->n;

	s->sum = crc32_add(s->sum, id, sizeof(*id));
	if (next >= shardcache_count(s->planned) ||
	    strcmp(shardcache_path(s->planned, next), path) != 0)
		return;
	s->same = s->same && fileid_unchanged(shardcache_id(s->planned, next), id);
	s->n++;
}

uint32_t planned_files_sum(struct plan *p, const char *path)
{
	struct sum s = { .planned = plan_shards(p), .same = true };
	struct tagdir d;
	struct hfdir h;

	if (!plan_zckpt(p)) {
		if (hfdir_open(shardcache_context(s.planned), &h, path, NULL))
			return 0;
		for (size_t i = 0; i < h.nfiles; i++)
			sum_add(&s, h.files[i].path, &h.files[i].file);
		hfdir_done(&h);
	} else {
		if (tagdir_scan(shardcache_context(s.planned), &d, path, NULL))
			return 0;
		for (size_t i = 0; i < d.nfiles; i++)
			sum_add(&s, tagdir_file(&d, i)->path, &tagdir_file(&d, i)->file);
		tagdir_done(&d);
	}
	return s.same && s.n == shardcache_count(s.planned) ? 0 : s.sum;
}

/* Returns when the file of a plan that was written last was. */
static int64_t newest_ns(const struct zero_checkpoint *r)
{
	int64_t newest = 0;

	for (size_t i = 0; i < r->dir.nfiles; i++)
		if (tagdir_file(&r->dir, i)->file.mtime_ns > newest)
			newest = tagdir_file(&r->dir, i)->file.mtime_ns;
	return newest;
}

static bool is_older(int64_t ns, unsigned seconds)
{
	return planned_files_now() - ns > seconds * INT64_C(1000000000);
}

bool planned_files_are_whole(struct plan *p, struct errmsg *why)
{
	const struct zero_checkpoint *const r = plan_zckpt(p);

	return !r || is_older(newest_ns(r), SETTLED_SECONDS) || far_is_far(&r->far) ||
	       zckpt_check_files(plan_zckpt(p), why) == 0;
}

bool planned_files_are_early(struct plan *p, int64_t began, struct errmsg *why)
{
	const struct zero_checkpoint *const r = plan_zckpt(p);

	if (!r || !r->model.ranks[0].lost || newest_ns(r) <= began ||
	    is_older(newest_ns(r), OPTIMIZER_SECONDS))
		return false;
	errmsg_set(why, 0, "%s", r->model.ranks[0].refused);
	return true;
}

int64_t planned_files_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return fileid_time_ns(&now);
}
