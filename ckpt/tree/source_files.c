/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/tree/source_files.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "ckpt/base/attrs.h"
#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"
#include "ckpt/io/shards.h"
#include "ckpt/remote/cache.h"
#include "ckpt/remote/latency.h"
#include "ckpt/table/checkpoint.h"

/* All files of a tag that was written to within this time are checked before it is listed: one
 * may be half-written.  Later, each is checked when it is read. */
#define SETTLED_SECONDS 600

/* A rank writes its shard within this time after its model states. */
#define OPTIMIZER_SECONDS 60

/* Does file `i` of a view still exist, judging by its inode, size and times? */
static bool is_there(struct shards *c, uint32_t i, struct errmsg *why)
{
	const char *const path = shards_path(c, i);
	struct fileid now;
	struct attrs a;

	if (io_stat(shards_context(c), path, 0, &a, NULL, why))
		return false;
	fileid_from_stat(&a.st, &now);
	if (fileid_equal(shards_id(c, i), &now))
		return true;
	fileid_report_change(path, shards_id(c, i), &now, why);
	return false;
}

static bool are_all_there(struct shards *c, struct errmsg *why)
{
	for (uint32_t i = 0; i < shards_count(c); i++)
		if (!is_there(c, i, why))
			return false;
	return true;
}

static bool are_chosen(const struct checkpoint *c)
{
	return !c->ops->is_chosen || c->ops->is_chosen(c);
}

bool source_files_are_there(struct view *v, struct errmsg *why)
{
	const struct checkpoint *const c = view_checkpoint(v);
	const uint32_t shards[] = { 0, (uint32_t)c->witness };

	return (latency_is_high(cache_latency(c->u)) || roots_are_remote(c->u, c->path) ||
		are_all_there(c->shards, why)) &&
	       shards_check_paths(c->shards, shards, 2, why) == 0 && are_chosen(c);
}

struct sum {
	const struct shards *planned;
	size_t n;
	uint32_t sum;
	bool same; /* equal so far */
};

/* Skip files of an earlier save, which the view leaves out but which may lie between its own. */
static void sum_add(struct sum *s, const char *path, const struct fileid *id)
{
	const uint32_t next = (uint32_t)s->n;

	s->sum = crc32_add(s->sum, id, sizeof(*id));
	if (next >= shards_count(s->planned) || strcmp(shards_path(s->planned, next), path) != 0)
		return;
	s->same = s->same && fileid_unchanged(shards_id(s->planned, next), id);
	s->n++;
}

uint32_t source_files_sum(struct view *v)
{
	const struct checkpoint *const c = view_checkpoint(v);
	struct sum s = { .planned = c->shards, .same = are_chosen(c) };
	struct checkpoint *now;

	if (checkpoint_list(c->u, c->ops, c->path, NULL, &now, NULL))
		return 0;
	for (size_t i = 0; i < now->nfiles; i++)
		sum_add(&s, now->files[i].path, &now->files[i].file);
	checkpoint_close(now);
	return s.same && s.n == c->nfiles ? 0 : s.sum;
}

/* The latest modification time of a view's files. */
static int64_t newest_ns(const struct checkpoint *c)
{
	int64_t newest = 0;

	for (size_t i = 0; i < c->nfiles; i++)
		if (c->files[i].file.mtime_ns > newest)
			newest = c->files[i].file.mtime_ns;
	return newest;
}

static bool is_older(int64_t ns, unsigned seconds)
{
	return source_files_now() - ns > seconds * INT64_C(1000000000);
}

bool source_files_are_whole(struct view *v, struct errmsg *why)
{
	struct checkpoint *const c = view_checkpoint(v);

	return !c->ops->verify || is_older(newest_ns(c), SETTLED_SECONDS) ||
	       latency_is_high(cache_latency(c->u)) || c->ops->verify(c, why) == 0;
}

bool source_files_are_early(struct view *v, int64_t began, struct errmsg *why)
{
	const struct checkpoint *const c = view_checkpoint(v);

	if (!c->ranks || !c->ranks->lost || newest_ns(c) <= began ||
	    is_older(newest_ns(c), OPTIMIZER_SECONDS))
		return false;
	errmsg_set(why, 0, "%s", c->ranks->refused);
	return true;
}

int64_t source_files_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return fileid_time_ns(&now);
}
