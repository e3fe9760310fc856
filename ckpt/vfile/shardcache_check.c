/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether shards are still the files that were planned.
 *
 * A look at a file costs a microsecond on a disk, and milliseconds on storage that is
 * far away: there it is repeated less often, shared by those who need it at the same
 * time, and made of many files at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/files/files.h"
#include "ckpt/sys/clock.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/vfile/shardcache_impl.h"

/* A check is repeated at most so often, and only when so many times what it took has
 * passed. */
#define CHECK_INTERVAL_NS UINT64_C(100000000)
#define CHECK_COST 50

int shardcache_check_fd(const struct entry *e, int fd, struct errmsg *err)
{
	struct fileid now;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return errmsg_set(err, -EIO, "%s: cannot stat: %s", e->path,
				  strerror(errno));
	fileid_from_stat(&st, &now);
	return fileid_equal(&now, &e->id)
		       ? 0
		       : fileid_report_change(e->path, &e->id, &now, err);
}

bool shardcache_check_due(struct shardcache *c, struct check *k)
{
	const uint64_t now = clock_ns();
	uint64_t every;
	bool due;

	pthread_mutex_lock(&c->lock);
	every = k->cost * CHECK_COST;
	if (every < CHECK_INTERVAL_NS)
		every = CHECK_INTERVAL_NS;
	due = k->made == 0 || now - k->made >= every;
	if (due && k->made) /* others do not make it, too */
		k->made = now;
	pthread_mutex_unlock(&c->lock);
	return due;
}

void shardcache_check_made(struct shardcache *c, struct check *k,
			   uint64_t begun, int rc)
{
	const uint64_t now = clock_ns();

	pthread_mutex_lock(&c->lock);
	k->made = rc ? 0 : now;
	k->cost = now - begun;
	pthread_mutex_unlock(&c->lock);
}

/* Take part in a check.  Called while the entry is in use. */
static int share_check(struct shardcache *c, struct entry *e, int fd,
		       struct errmsg *err)
{
	uint64_t mine;
	int rc;

	pthread_mutex_lock(&c->lock);
	mine = e->begun + 1;
	while (e->ended < mine && e->ended < e->begun)
		pthread_cond_wait(&c->checked, &c->lock);
	if (e->ended >= mine) {
		rc = e->result;
		pthread_mutex_unlock(&c->lock);
		return rc ? shardcache_check_fd(e, fd, err) : 0;
	}
	e->begun = mine;
	pthread_mutex_unlock(&c->lock);
	rc = shardcache_check_fd(e, fd, err);
	pthread_mutex_lock(&c->lock);
	e->ended = mine;
	e->result = rc;
	pthread_cond_broadcast(&c->checked);
	pthread_mutex_unlock(&c->lock);
	return rc;
}

int shardcache_verify(struct shardcache *c, uint32_t shard, struct errmsg *err)
{
	struct entry *const e = &c->v[shard];
	const uint64_t begun = clock_ns();
	struct shard_map m;
	bool fresh;
	int rc = shardcache_use(c, shard, &m, &fresh, err);

	if (rc)
		return rc;
	if (!fresh && m.fd >= 0)
		rc = share_check(c, e, m.fd, err);
	shardcache_put(c, shard);
	shardcache_check_made(c, &e->of_file, begun, rc);
	return rc;
}

static int check_path(const struct entry *e, struct errmsg *err)
{
	struct fileid id;
	struct stat st;
	int rc = files_stat(e->path, &st, NULL);

	if (rc)
		return errmsg_set(err, -EIO, "%s: is gone: %s", e->path,
				  strerror(-rc));
	fileid_from_stat(&st, &id);
	return fileid_equal(&id, &e->id)
		       ? 0
		       : fileid_report_change(e->path, &e->id, &id, err);
}

int shardcache_check_path(struct shardcache *c, uint32_t shard,
			  struct errmsg *err)
{
	struct entry *const e = &c->v[shard];
	const uint64_t begun = clock_ns();
	int rc;

	if (!shardcache_check_due(c, &e->of_path))
		return 0;
	rc = check_path(e, err);
	shardcache_check_made(c, &e->of_path, begun, rc);
	return rc;
}

struct checking {
	struct shardcache *c;
	const uint32_t *shards;
	shardcache_check *check;
};

static int check_one(void *ctx, size_t i, struct errmsg *err)
{
	const struct checking *const x = ctx;

	return x->check(x->c, x->shards[i], err);
}

int shardcache_check_each(struct shardcache *c, const uint32_t *shards,
			  size_t n, shardcache_check *check, struct errmsg *err)
{
	struct checking x = { c, shards, check };
	int rc = 0;

	if (shardcache_is_far(c))
		return parallel_far(n, 1, check_one, &x, err);
	for (size_t i = 0; !rc && i < n; i++)
		rc = check(c, shards[i], err);
	return rc;
}
