/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open shards.
 *
 * A checkpoint may have tens of thousands of shard files, more than a process may hold open, so
 * they are opened when first read, and some without users are closed when a limit is reached.  Each
 * is identified by the result of fstat when the tree was planned.  A file that differs is never
 * read, because its bytes would be mixed with those of the planned one in a tensor.  Copied bytes
 * are checked after they were read, and read again if only the ctime changed.
 */
#include "ckpt/io/shards.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "ckpt/io/io.h"
#include "ckpt/io/shards_impl.h"
#include "ckpt/remote/latency.h"

/* Of this many mapped bytes of a local store one window is read instead of mapped, to detect
 * whether the store has become slow. */
#define PROBE_BYTES (UINT64_C(32) << 20)

static size_t open_limit(void)
{
	struct rlimit rl;
	rlim_t others;

	if (getrlimit(RLIMIT_NOFILE, &rl) < 0)
		return 64;
	/* Reserve descriptors for directories and the rest of the process. */
	others = rl.rlim_cur / 8 < 32 ? 32 : rl.rlim_cur / 8;
	if (rl.rlim_cur <= others)
		return 1;
	if (rl.rlim_cur - others < SHARDS_OPEN_MAX)
		return (size_t)(rl.rlim_cur - others);
	return SHARDS_OPEN_MAX;
}

static cache_fill fill_shard;
static cache_check check_shard;

struct shards *shards_new(struct uckpt *u)
{
	struct shards *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->ahead = cache_new(u, &(struct cache_config){ .fill = fill_shard,
							.check = check_shard,
							.ctx = c,
							.latency = cache_latency(u) });
	if (!c->ahead) {
		free(c);
		return NULL;
	}
	c->u = u;
	c->latency = cache_latency(u);
	pthread_cond_init(&c->opened, NULL);
	pthread_cond_init(&c->checked, NULL);
	c->open_max = open_limit();
	return c;
}

static void close_entry(struct entry *e)
{
	assert(e->open && e->users == 0);
	if (e->p)
		munmap((void *)e->p, (size_t)e->id.size);
	source_close(&e->src);
}

void shards_free(struct shards *c)
{
	if (!c)
		return;
	cache_free(c->ahead);
	for (size_t i = 0; i < c->n; i++) {
		if (c->v[i].open)
			close_entry(&c->v[i]);
		free(c->v[i].path);
	}
	free(c->v);
	pthread_cond_destroy(&c->checked);
	pthread_cond_destroy(&c->opened);
	free(c);
}

int64_t shards_add(struct shards *c, const char *path, const struct fileid *id)
{
	if (!array_reserve(&c->v, &c->cap, c->n + 1, sizeof(*c->v)))
		return -1;
	c->v[c->n] = (struct entry){ .path = strdup(path), .id = *id, .ctime_ns = CTIME_UNKNOWN };
	return c->v[c->n].path ? (int64_t)c->n++ : -1;
}

struct uckpt *shards_context(const struct shards *c)
{
	return c->u;
}

size_t shards_count(const struct shards *c)
{
	return c->n;
}

const char *shards_path(const struct shards *c, uint32_t shard)
{
	return c->v[shard].path;
}

const struct fileid *shards_id(const struct shards *c, uint32_t shard)
{
	return &c->v[shard].id;
}

/* Close a random shard without users; false if there is none.  Called when a limit is
 * reached.  Closing the least recently used one would thrash: readers go through all ranks,
 * parameter by parameter, and would find each closed just before they need it.  A store may
 * take its time to close a file, too. */
static bool shards_evict(struct shards *c)
{
	struct entry victim = { .open = false };
	size_t i = (size_t)random() % c->n;

	pthread_mutex_lock(&c->u->lock);
	for (size_t k = 0; k < c->n; k++, i = i + 1 < c->n ? i + 1 : 0)
		if (c->v[i].open && c->v[i].users == 0) {
			victim = c->v[i];
			c->v[i].open = false;
			c->v[i].p = NULL;
			c->nopen--;
			break;
		}
	pthread_mutex_unlock(&c->u->lock);
	if (victim.open)
		close_entry(&victim);
	return victim.open;
}

/* Open a shard.  Other parts of the process may hold more descriptors than open_limit leaves
 * them: shards are closed to make room. */
static int open_shard(struct shards *c, struct entry *e, struct source *src, struct errmsg *err)
{
	int rc;

	do
		rc = io_open(c->u, e->path, NULL, src, err);
	while (rc == -EMFILE && shards_evict(c));
	if (rc)
		return -EIO;
	if (err)
		err->text[0] = '\0'; /* left by an attempt without a descriptor */
	/* A source without a descriptor checks its reads itself. */
	if (src->fd < 0)
		return source_check_known(src, &e->id, err);
	rc = shards_check_fd(c, e, src->fd, &src->id, err);
	if (rc)
		source_close(src);
	return rc;
}

/* The caller holds the lock.  It is released during the open, so that other shards can be opened
 * and read while a store is slow. */
static int open_entry(struct shards *c, struct entry *e, struct errmsg *err)
{
	const uint64_t begun = clock_ns();
	struct latency_request q;
	const bool full = c->nopen++ >= c->open_max;
	struct source src;
	int rc;

	e->opening = true;
	pthread_mutex_unlock(&c->u->lock);
	if (full)
		shards_evict(c);
	latency_begin(c->latency, &q, SIZE_MAX);
	rc = open_shard(c, e, &src, err);
	latency_end(c->latency, &q);
	pthread_mutex_lock(&c->u->lock);
	e->opening = false;
	if (rc) {
		c->nopen--;
	} else {
		e->open = true;
		atomic_store(&e->was_open, true);
		e->src = src;
		if (src.fd < 0)
			atomic_store(&c->decodes, true);
		/* The path leads to the planned file. */
		check_passed(&e->of_path, begun);
		check_passed(&e->of_file, begun);
	}
	pthread_cond_broadcast(&c->opened);
	return rc;
}

int shards_use_unchecked(struct shards *c, uint32_t shard, struct shard_map *out, bool *fresh,
			 struct errmsg *err)
{
	struct entry *e = &c->v[shard];
	int rc = 0;

	*fresh = false;
	pthread_mutex_lock(&c->u->lock);
	while (e->opening)
		pthread_cond_wait(&c->opened, &c->u->lock);
	if (!e->open) {
		rc = open_entry(c, e, err);
		*fresh = true;
	}
	if (!rc) {
		e->users++;
		e->last_use = ++c->clock;
		*out = (struct shard_map){ .p = e->p, .fd = e->src.fd };
	}
	pthread_mutex_unlock(&c->u->lock);
	return rc;
}

/* Check a shard in use. */
static int check_used(struct shards *c, uint32_t shard, const struct shard_map *m,
		      struct errmsg *err)
{
	struct entry *e = &c->v[shard];
	const int rc = m->fd < 0 ? 0 : shards_check_fd(c, e, m->fd, NULL, err);

	if (!rc)
		return 0;
	pthread_mutex_lock(&c->u->lock);
	e->of_path.made = 0; /* the next open of the file checks its path */
	pthread_mutex_unlock(&c->u->lock);
	return rc;
}

/* Map a shard in use, unless it is mapped.  With many ranks, most shards are read in pieces too
 * small for that.  Under `ulimit -v` readers use pread. */
static const uint8_t *map_used(struct shards *c, struct entry *e)
{
	void *m = mmap(NULL, (size_t)e->id.size, PROT_READ, MAP_SHARED, e->src.fd, 0);
	const uint8_t *p;

	if (m == MAP_FAILED)
		return NULL;
	pthread_mutex_lock(&c->u->lock);
	if (!e->p)
		e->p = m;
	p = e->p;
	pthread_mutex_unlock(&c->u->lock);
	if (p != m) /* another reader was faster */
		munmap(m, (size_t)e->id.size);
	return p;
}

int shards_use(struct shards *c, uint32_t shard, struct shard_map *out, struct errmsg *err)
{
	bool fresh;
	int rc = shards_use_unchecked(c, shard, out, &fresh, err);

	if (!rc && !fresh && (rc = check_used(c, shard, out, err)))
		shards_unuse(c, shard);
	if (!rc && out->fd >= 0 && !out->p)
		out->p = map_used(c, &c->v[shard]);
	return rc;
}

void shards_unuse(struct shards *c, uint32_t shard)
{
	pthread_mutex_lock(&c->u->lock);
	assert(shard < c->n && c->v[shard].users > 0);
	c->v[shard].users--;
	pthread_mutex_unlock(&c->u->lock);
}

/* Unmap the pages of shards used since the last call, to bound our resident set.
 * The pages stay in the page cache.  An entry counts as in use meanwhile, so that
 * its mapping stays valid. */
static void let_go(struct shards *c)
{
	uint64_t since;

	pthread_mutex_lock(&c->u->lock);
	since = c->let_go;
	c->let_go = c->clock;
	for (size_t i = 0; i < c->n; i++) {
		struct entry *e = &c->v[i];

		if (!e->p || (e->last_use <= since && e->users == 0))
			continue;
		e->users++;
		pthread_mutex_unlock(&c->u->lock);
		madvise((void *)e->p, (size_t)e->id.size, MADV_DONTNEED);
		pthread_mutex_lock(&c->u->lock);
		e->users--;
	}
	pthread_mutex_unlock(&c->u->lock);
}

void shards_count_mapped(struct shards *c, size_t len)
{
	uint64_t all = atomic_fetch_add(&c->mapped, len) + len;

	if (all >= SHARDS_MAPPED_MAX && atomic_compare_exchange_strong(&c->mapped, &all, 0))
		let_go(c);
}

bool shards_has_descriptor(struct shards *c, uint32_t shard)
{
	struct shard_map m;

	if (shards_use(c, shard, &m, NULL))
		return true;
	shards_unuse(c, shard);
	return m.fd >= 0;
}

/* Read from a shard in use, and measure the store's latency. */
static int read_used(struct shards *c, uint32_t shard, void *buf, size_t len, uint64_t off,
		     struct errmsg *err)
{
	struct latency_request q;
	int rc;

	latency_begin(c->latency, &q, len);
	rc = source_read(&c->v[shard].src, buf, len, off, err);
	latency_end(c->latency, &q);
	return rc == -EBADMSG && c->v[shard].src.fd >= 0 ? -EIO : rc;
}

/* Fill a block of the cache, which checks the file afterwards: the bytes may be used much later. */
static int fill_shard(void *ctx, uint32_t shard, void *buf, size_t len, uint64_t off,
		      struct errmsg *err)
{
	struct shards *c = ctx;
	struct shard_map m;
	bool fresh;
	int rc = shards_use_unchecked(c, shard, &m, &fresh, err);

	if (rc)
		return rc;
	rc = read_used(c, shard, buf, len, off, err);
	shards_unuse(c, shard);
	return rc;
}

static int check_shard(void *ctx, uint32_t shard, struct errmsg *err)
{
	return shards_verify(ctx, shard, err);
}

/* Read, and check that the file is still the planned one.  -EAGAIN if its ctime changed during the
 * read. */
static int read_checked(struct shards *c, uint32_t shard, void *buf, size_t len, uint64_t off,
			struct errmsg *err)
{
	struct shard_map m;
	int64_t ctime_ns;
	bool fresh;
	int read, rc = shards_use_unchecked(c, shard, &m, &fresh, err);

	if (rc)
		return rc;
	ctime_ns = atomic_load(&c->v[shard].ctime_ns);
	read = read_used(c, shard, buf, len, off, err);
	rc = check_used(c, shard, &m, err);
	if (!rc && atomic_load(&c->v[shard].ctime_ns) != ctime_ns)
		rc = -EAGAIN;
	shards_unuse(c, shard);
	return rc ? rc : read;
}

bool shards_reads_ahead(const struct shards *c)
{
	return shards_is_slow(c) || cache_has_blocks(c->ahead);
}

/* Check now and then that the planned file is still there: cached bytes come from it, but may be
 * outdated.  A shard that was never open has no cached bytes; threads that fetch such bytes open
 * and check it, several shards at once. */
static int look_at(struct shards *c, uint32_t shard, struct errmsg *err)
{
	const int rc =
		atomic_load(&c->v[shard].was_open) && shards_check_due(c, &c->v[shard].of_file)
			? shards_verify(c, shard, err)
			: 0;

	return rc == -EAGAIN ? 0 : rc;
}

bool shards_pin(struct shards *c, uint32_t shard, uint64_t off, size_t len, struct cache_pin *out)
{
	return shards_reads_ahead(c) && look_at(c, shard, NULL) == 0 &&
	       cache_pin(c->ahead, shard, off, len, out);
}

/* Read once.  -EAGAIN if the file's ctime changed during the read. */
static int read_once(struct shards *c, uint32_t shard, void *buf, size_t len, uint64_t off,
		     struct errmsg *err)
{
	int rc;

	if (!shards_reads_ahead(c))
		return read_checked(c, shard, buf, len, off, err);
	rc = look_at(c, shard, err);
	if (rc)
		return rc;
	/* Read several pieces at once. */
	if (len > CACHE_PIECE)
		cache_prefetch(c->ahead, shard, off, len, WANT_NOW);
	return cache_read(c->ahead, shard, buf, len, off, err);
}

/* Limit of repetitions for a file whose ctime changes all the time. */
#define TRIES_MAX 10

int shards_read(struct shards *c, uint32_t shard, void *buf, size_t len, uint64_t off,
		struct errmsg *err)
{
	int rc = -EAGAIN;

	for (int i = 0; rc == -EAGAIN && i < TRIES_MAX; i++)
		rc = read_once(c, shard, buf, len, off, err);
	return rc == -EAGAIN
		       ? errmsg_set(err, -EIO, "%s: is touched all the time", c->v[shard].path)
		       : rc;
}

bool shards_is_slow(const struct shards *c)
{
	return latency_is_high(c->latency) && cache_limit(c->u) > 0;
}

bool shards_gains_ahead(const struct shards *c)
{
	return (latency_is_high(c->latency) || atomic_load(&c->decodes)) && cache_limit(c->u) > 0;
}

uint64_t shards_prefetch(struct shards *c, uint32_t shard, uint64_t off, uint64_t len,
			 enum want when)
{
	return cache_prefetch(c->ahead, shard, off, len, when);
}

bool shards_can_map(struct shards *c, size_t len)
{
	const uint64_t before = atomic_fetch_add(&c->asked, len);

	if (cache_limit(c->u) == 0)
		return true;
	return !latency_maybe_high(c->latency) &&
	       before / PROBE_BYTES == (before + len) / PROBE_BYTES;
}
