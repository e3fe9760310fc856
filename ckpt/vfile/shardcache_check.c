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

/* The least time between two checks of a file; of a far one it is CHECK_COST times what
 * the last check took, up to CHECK_INTERVAL_MAX_NS. */
#define CHECK_INTERVAL_NS UINT64_C(100000000)
#define CHECK_INTERVAL_MAX_NS UINT64_C(10000000000)
#define CHECK_COST 100

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

/* Near, a check that took long was waiting for a processor. */
static uint64_t check_interval(const struct shardcache *c, const struct check *k)
{
	const uint64_t every = far_is_far(&c->far) ? k->cost * CHECK_COST : 0;

	if (every < CHECK_INTERVAL_NS)
		return CHECK_INTERVAL_NS;
	return every < CHECK_INTERVAL_MAX_NS ? every : CHECK_INTERVAL_MAX_NS;
}

/* Called with the lock held. */
static bool is_due(const struct shardcache *c, const struct check *k,
		   uint64_t now)
{
	return k->made == 0 || now - k->made >= check_interval(c, k);
}

/* See that others do not make a check, too.  Called with the lock held. */
static void claim_check(struct check *k, uint64_t now)
{
	if (k->made)
		k->made = now;
}

bool shardcache_check_due(struct shardcache *c, struct check *k)
{
	const uint64_t now = clock_ns();
	bool due;

	pthread_mutex_lock(&c->lock);
	due = is_due(c, k, now);
	if (due)
		claim_check(k, now);
	pthread_mutex_unlock(&c->lock);
	return due;
}

static void check_made(struct shardcache *c, struct check *k, uint64_t begun,
		       int rc)
{
	pthread_mutex_lock(&c->lock);
	if (rc)
		k->made = 0;
	else
		check_passed(k, begun);
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
	check_made(c, &e->of_file, begun, rc);
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

static int check_path_now(struct shardcache *c, uint32_t shard,
			  struct errmsg *err)
{
	struct entry *const e = &c->v[shard];
	const uint64_t begun = clock_ns();
	const int rc = check_path(e, err);

	check_made(c, &e->of_path, begun, rc);
	/* The open file is the one that the path leads to. */
	if (!rc)
		check_made(c, &e->of_file, begun, 0);
	return rc;
}

/* Shards that are checked at once. */
#define AT_ONCE PARALLEL_FAR

struct checking {
	struct shardcache *c;
	uint32_t shards[AT_ONCE];
	size_t n;
	size_t needed; /* the others are checked early */
};

/* Is it time for half of the interval?  Called with the lock held. */
static bool is_due_soon(const struct shardcache *c, const struct check *k,
			uint64_t now)
{
	return k->made && now - k->made >= check_interval(c, k) / 2;
}

/* Called with the lock held. */
static void add_check(struct checking *x, uint32_t shard, uint64_t now)
{
	claim_check(&x->c->v[shard].of_path, now);
	x->shards[x->n++] = shard;
}

/* Add the following shards whose checks will be due soon.  Far away, several checks in
 * parallel take as long as one, and readers of these shards need not wait for theirs.
 * Called with the lock held. */
static void add_following(struct checking *x, uint64_t now)
{
	const struct shardcache *const c = x->c;
	const uint32_t first = x->shards[0];

	for (size_t i = 1; i < c->n && i < AT_ONCE && x->n < AT_ONCE; i++) {
		const uint32_t shard = (uint32_t)((first + i) % c->n);

		if (is_due_soon(c, &c->v[shard].of_path, now))
			add_check(x, shard, now);
	}
}

static int check_listed(void *ctx, size_t i, struct errmsg *err)
{
	const struct checking *const x = ctx;
	const int rc = check_path_now(x->c, x->shards[i], err);

	/* Whoever needs it meets the error. */
	return i < x->needed ? rc : 0;
}

int shardcache_check_paths(struct shardcache *c, const uint32_t *shards, size_t n,
			   struct errmsg *err)
{
	const bool far = shardcache_is_far(c);
	struct checking x = { .c = c };
	int rc = 0;

	for (size_t i = 0; !rc && i < n;) {
		const uint64_t now = clock_ns();

		x.n = 0;
		pthread_mutex_lock(&c->lock);
		for (; i < n && x.n < AT_ONCE; i++) {
			if (is_due(c, &c->v[shards[i]].of_path, now))
				add_check(&x, shards[i], now);
		}
		x.needed = x.n;
		if (far && x.n)
			add_following(&x, now);
		pthread_mutex_unlock(&c->lock);
		rc = parallel_try(x.n, far ? AT_ONCE : 1, check_listed, &x,
				  err);
	}
	return rc;
}

struct opening {
	struct shardcache *c;
	const uint32_t *shards;
};

static int check_file(void *ctx, size_t i, struct errmsg *err)
{
	const struct opening *const x = ctx;
	struct shard_map m;
	const int rc = shardcache_get(x->c, x->shards[i], &m, err);

	if (!rc)
		shardcache_put(x->c, x->shards[i]);
	return rc;
}

int shardcache_check_files(struct shardcache *c, const uint32_t *shards,
			   size_t n, struct errmsg *err)
{
	struct opening x = { c, shards };

	return shardcache_is_far(c)
		       ? parallel_far(n, 1, check_file, &x, err)
		       : parallel_try(n, 1, check_file, &x, err);
}
