/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that shards are still the files that were planned.
 *
 * A check costs a microsecond on a disk, and milliseconds on slow storage: there it is
 * repeated less often, shared by readers that need it at the same time, and made of many
 * files at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/context.h"
#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/system.h"
#include "ckpt/io/io.h"
#include "ckpt/io/shards_impl.h"

/* The least time between two checks of a file; for a slow one CHECK_COST times the duration of
 * the last check, up to CHECK_INTERVAL_MAX_NS. */
#define CHECK_INTERVAL_NS UINT64_C(100000000)
#define CHECK_INTERVAL_MAX_NS UINT64_C(10000000000)
#define CHECK_COST 100

/* The tail of a .pt file has checksums of all other bytes, written by torch.save; the tail of
 * other files has tensors. */
#define TAIL_BYTES (UINT64_C(64) << 10)

/* A ctime younger than this is not trusted: a file may be written to twice within a tick of the
 * clock that stamps it. */
#define TICK_NS INT64_C(20000000)
#define TICKS_MAX 50

/* -EIO unless inode, size and mtime are the planned ones. */
static int compare(const struct entry *e, const struct fileid *now, struct errmsg *err)
{
	return fileid_equal(now, &e->id) ? 0 : fileid_report_change(e->path, &e->id, now, err);
}

static int identify(const struct entry *e, int fd, struct fileid *now, struct errmsg *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return errmsg_set(err, -EIO, "%s: cannot stat: %s", e->path, strerror(errno));
	fileid_from_stat(&st, now);
	return compare(e, now, err);
}

/* Is a time stamp of the present tick, or in the future? */
static bool is_fresh(int64_t ns)
{
	struct timespec t;
	int64_t age;

	clock_gettime(CLOCK_REALTIME, &t);
	age = fileid_time_ns(&t) - ns;
	return age > -TICK_NS && age < TICK_NS;
}

static int sum_tail(const struct entry *e, int fd, uint32_t *sum, struct errmsg *err)
{
	const size_t len = (size_t)(e->id.size < TAIL_BYTES ? e->id.size : TAIL_BYTES);
	const struct source s = { .name = e->path, .size = e->id.size, .fd = fd };
	uint8_t *tail = scratch_take(len ? len : 1);
	int rc = tail ? source_read(&s, tail, len, e->id.size - len, err)
		      : errmsg_nomem(err, e->path);

	if (!rc)
		*sum = crc32_add(0, tail, len);
	scratch_give(tail);
	return rc ? -EIO : 0;
}

/* Sum the tail of a file while no process writes to it; `*now` becomes its identity. */
static int sum_settled(const struct entry *e, int fd, uint32_t *sum, struct fileid *now,
		       struct errmsg *err)
{
	const struct timespec tick = { .tv_nsec = TICK_NS };
	struct fileid before;

	for (int i = 0; i < TICKS_MAX; i++) {
		int rc = identify(e, fd, &before, err);

		if (!rc)
			rc = sum_tail(e, fd, sum, err);
		if (!rc)
			rc = identify(e, fd, now, err);
		if (rc)
			return rc;
		if (before.ctime_ns == now->ctime_ns && !is_fresh(now->ctime_ns))
			return 0;
		nanosleep(&tick, NULL);
	}
	return errmsg_set(err, -EIO, "%s: is written to all the time", e->path);
}

/* Accept a new ctime, if the content is what it was when the file was first opened. */
static int accept_ctime(struct shards *c, struct entry *e, int fd, struct errmsg *err)
{
	struct fileid now;
	uint32_t sum;
	int rc = sum_settled(e, fd, &sum, &now, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&c->u->lock);
	if (atomic_load(&e->ctime_ns) == CTIME_UNKNOWN)
		e->tail = sum;
	if (e->tail == sum)
		atomic_store(&e->ctime_ns, now.ctime_ns);
	else
		rc = fileid_report_change(e->path, &e->id, &now, err);
	pthread_mutex_unlock(&c->u->lock);
	return rc;
}

int shards_check_fd(struct shards *c, struct entry *e, int fd, const struct fileid *now,
		    struct errmsg *err)
{
	const int64_t known = atomic_load(&e->ctime_ns);
	struct fileid id;
	int rc = now ? compare(e, now, err) : identify(e, fd, &id, err);

	if (!now)
		now = &id;
	if (rc || now->ctime_ns == known)
		return rc;
	if (known == CTIME_UNKNOWN && !fileid_unchanged(&e->id, now))
		return fileid_report_change(e->path, &e->id, now, err);
	/* Readers of a file that has just been saved must not wait. */
	if (known == CTIME_UNKNOWN && is_fresh(now->ctime_ns))
		return 0;
	return accept_ctime(c, e, fd, err);
}

/* A check of a fast store that took long has waited for a processor. */
static uint64_t check_interval(const struct shards *c, const struct check *k)
{
	const uint64_t every = latency_is_high(c->latency) ? k->cost * CHECK_COST : 0;

	if (every < CHECK_INTERVAL_NS)
		return CHECK_INTERVAL_NS;
	return every < CHECK_INTERVAL_MAX_NS ? every : CHECK_INTERVAL_MAX_NS;
}

/* Is a check due after this part of the interval?  Then the caller makes it, and others do not.
 * The caller holds the lock. */
static bool claim_check(const struct shards *c, struct check *k, uint64_t now, unsigned part)
{
	if (k->made && now - k->made < check_interval(c, k) / part)
		return false;
	if (k->made)
		k->made = now;
	return true;
}

bool shards_check_due(struct shards *c, struct check *k)
{
	bool due;

	pthread_mutex_lock(&c->u->lock);
	due = claim_check(c, k, clock_ns(), 1);
	pthread_mutex_unlock(&c->u->lock);
	return due;
}

static void check_made(struct shards *c, struct check *k, uint64_t begun, int rc)
{
	pthread_mutex_lock(&c->u->lock);
	if (rc)
		k->made = 0;
	else
		check_passed(k, begun);
	pthread_mutex_unlock(&c->u->lock);
}

/* Take part in a check.  Called while the entry is in use. */
static int share_check(struct shards *c, struct entry *e, int fd, struct errmsg *err)
{
	const int64_t ctime_ns = atomic_load(&e->ctime_ns);
	uint64_t mine;
	int rc;

	pthread_mutex_lock(&c->u->lock);
	mine = e->begun + 1;
	while (e->ended < mine && e->ended < e->begun)
		pthread_cond_wait(&c->checked, &c->u->lock);
	if (e->ended >= mine) {
		rc = e->result;
		pthread_mutex_unlock(&c->u->lock);
		return rc && rc != -EAGAIN ? shards_check_fd(c, e, fd, NULL, err) : rc;
	}
	e->begun = mine;
	pthread_mutex_unlock(&c->u->lock);
	rc = shards_check_fd(c, e, fd, NULL, err);
	if (!rc && atomic_load(&e->ctime_ns) != ctime_ns)
		rc = -EAGAIN;
	pthread_mutex_lock(&c->u->lock);
	e->ended = mine;
	e->result = rc;
	pthread_cond_broadcast(&c->checked);
	pthread_mutex_unlock(&c->u->lock);
	return rc;
}

int shards_verify(struct shards *c, uint32_t shard, struct errmsg *err)
{
	struct entry *e = &c->v[shard];
	const uint64_t begun = clock_ns();
	struct shard_map m;
	bool fresh;
	int rc = shards_use_unchecked(c, shard, &m, &fresh, err);

	if (rc)
		return rc;
	if (!fresh && m.fd >= 0)
		rc = share_check(c, e, m.fd, err);
	shards_unuse(c, shard);
	check_made(c, &e->of_file, begun, rc);
	return rc;
}

/* Open and check a shard. */
static int check_file(struct shards *c, uint32_t shard, struct errmsg *err)
{
	struct shard_map m;
	const int rc = shards_use(c, shard, &m, err);

	if (!rc)
		shards_unuse(c, shard);
	return rc;
}

static int check_path(struct shards *c, uint32_t shard, struct errmsg *err)
{
	struct entry *e = &c->v[shard];
	const int64_t known = atomic_load(&e->ctime_ns);
	struct fileid id;
	struct attrs a;
	int rc = io_stat(c->u, e->path, 0, &a, NULL, NULL);

	if (rc)
		return errmsg_set(err, -EIO, "%s: is gone: %s", e->path, strerror(-rc));
	fileid_from_stat(&a.st, &id);
	rc = compare(e, &id, err);
	if (rc)
		return rc;
	/* Another ctime, but the planned size and mtime: the content decides. */
	return id.ctime_ns == (known == CTIME_UNKNOWN ? e->id.ctime_ns : known)
		       ? 0
		       : check_file(c, shard, err);
}

static int check_path_now(struct shards *c, uint32_t shard, struct errmsg *err)
{
	struct entry *e = &c->v[shard];
	const uint64_t begun = clock_ns();
	const int rc = check_path(c, shard, err);

	check_made(c, &e->of_path, begun, rc);
	/* The open file is the one that the path leads to. */
	if (!rc)
		check_made(c, &e->of_file, begun, 0);
	return rc;
}

/* Shards that are checked at once. */
#define AT_ONCE PARALLEL_FAR

struct checking {
	struct shards *c;
	uint32_t shards[AT_ONCE];
	size_t n;
	size_t needed; /* the first `needed` are required; the others are checked early */
};

/* Add the following shards whose checks will be due soon.  In a slow store several parallel
 * checks take as long as one, and save the readers of these shards a wait.  The caller holds the
 * lock. */
static void add_following(struct checking *x, uint64_t now)
{
	const struct shards *c = x->c;

	for (size_t i = 1; i < c->n && i < AT_ONCE && x->n < AT_ONCE; i++) {
		const uint32_t shard = (uint32_t)((x->shards[0] + i) % c->n);
		struct check *k = &c->v[shard].of_path;

		if (k->made && claim_check(c, k, now, 2))
			x->shards[x->n++] = shard;
	}
}

static int check_listed(void *ctx, size_t i, struct errmsg *err)
{
	const struct checking *x = ctx;
	const int rc = check_path_now(x->c, x->shards[i], err);

	/* A reader that needs the shard will get the error. */
	return i < x->needed ? rc : 0;
}

int shards_check_paths(struct shards *c, const uint32_t *shards, size_t n, struct errmsg *err)
{
	const bool slow = shards_is_slow(c);
	struct checking x = { .c = c };
	int rc = 0;

	for (size_t i = 0; !rc && i < n;) {
		const uint64_t now = clock_ns();

		x.n = 0;
		pthread_mutex_lock(&c->u->lock);
		for (; i < n && x.n < AT_ONCE; i++)
			if (claim_check(c, &c->v[shards[i]].of_path, now, 1))
				x.shards[x.n++] = shards[i];
		x.needed = x.n;
		if (slow && x.n)
			add_following(&x, now);
		pthread_mutex_unlock(&c->u->lock);
		rc = parallel_for(x.n, slow ? AT_ONCE : 1, check_listed, &x, err);
	}
	return rc;
}

struct opening {
	struct shards *c;
	const uint32_t *shards;
};

static int check_ith(void *ctx, size_t i, struct errmsg *err)
{
	const struct opening *x = ctx;

	return check_file(x->c, x->shards[i], err);
}

int shards_check_files(struct shards *c, const uint32_t *shards, size_t n, struct errmsg *err)
{
	struct opening x = { c, shards };

	return shards_is_slow(c) ? parallel_far(n, 1, check_ith, &x, err)
				: parallel_for(n, 1, check_ith, &x, err);
}
