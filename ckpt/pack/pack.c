/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening packs.  All who open a path share one pack, since plan, readers and
 * checks each come by the path, and the index of a large checkpoint takes a
 * while to check.
 *
 * The last few packs of servers stay open without a user: the next one would fetch
 * the index, tables and some blocks again.
 */
#include "ckpt/pack/pack_impl.h"
#include "ckpt/remote/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/cache/far.h"

/* Packs that stay so. */
#define KEPT_MAX 4

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pack *packs; /* by pack_open; protected by the lock */

static void pack_free(struct pack *p)
{
	if (!p)
		return;
	cache_free(p->cache);
	for (uint32_t i = 0; p->tables && i < p->x.nextents; i++)
		free(atomic_load(&p->tables[i]));
	free(p->tables);
	pack_index_done(&p->x);
	source_close(&p->src);
	free(p->path);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static int make_tables(struct pack *p, struct errmsg *err)
{
	static const struct far local; /* never far */

	p->tables = calloc((size_t)p->x.nextents + 1, sizeof(*p->tables));
	p->cache = cache_new(&(struct cache_config){
		.fill = pack_fill,
		.ctx = p,
		.far = pack_is_requested(p) ? NULL : &local,
		.crosses = true });
	return p->tables && p->cache ? 0 : errmsg_nomem(err, p->src.name);
}

int pack_open_source(const struct source *src, struct pack **out,
		     struct errmsg *err)
{
	struct pack *const p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return errmsg_nomem(err, src->name);
	pthread_mutex_init(&p->lock, NULL);
	p->src = *src;
	p->users = 1;
	rc = pack_index_read(&p->src, &p->x, err);
	if (!rc)
		rc = make_tables(p, err);
	if (rc) {
		p->src = (struct source){ .fd = -1 }; /* stays the caller's */
		pack_free(p);
		return rc;
	}
	*out = p;
	return 0;
}

/* The pack of this path that is open already; NULL if there is none. */
static struct pack *ref_open(const char *path)
{
	struct fileid id;
	struct attrs a;
	struct pack *p;

	if (store_of(path)->stat(path, false, &a, NULL))
		return NULL;
	fileid_from_stat(&a.st, &id);
	pthread_mutex_lock(&lock);
	p = packs;
	while (p &&
	       (strcmp(p->path, path) != 0 || !fileid_equal(&p->src.id, &id)))
		p = p->next;
	if (p)
		p->users++;
	pthread_mutex_unlock(&lock);
	return p;
}

int pack_open(const char *path, struct pack **out, struct errmsg *err)
{
	struct pack *p = ref_open(path);
	struct source src;
	char *copy;
	int rc;

	if (p) {
		*out = p;
		return 0;
	}
	copy = strdup(path);
	if (!copy)
		return errmsg_nomem(err, path);
	rc = store_of(copy)->open(&src, copy, err);
	if (!rc && (rc = pack_open_source(&src, &p, err)))
		source_close(&src);
	if (rc) {
		free(copy);
		return rc;
	}
	/* Another thread may have opened it meanwhile; then there are two. */
	pthread_mutex_lock(&lock);
	p->path = copy;
	p->next = packs;
	packs = p;
	pthread_mutex_unlock(&lock);
	*out = p;
	return 0;
}

struct pack *pack_ref(struct pack *p)
{
	pthread_mutex_lock(&lock);
	p->users++;
	pthread_mutex_unlock(&lock);
	return p;
}

/* After `p` has lost its last user, take the pack that is to be freed out of the list: it,
 * or the oldest of those that are kept.  NULL if there is none.  Called with the lock
 * held. */
static struct pack *take_surplus(struct pack *p)
{
	unsigned kept = 0;

	for (struct pack **at = &packs; *at; at = &(*at)->next) {
		struct pack *const q = *at;

		if (q->users || (pack_is_requested(q) && ++kept <= KEPT_MAX))
			continue;
		*at = q->next;
		return q;
	}
	return p->path ? NULL : p; /* in no list */
}

void pack_close(struct pack *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&lock);
	p = --p->users == 0 ? take_surplus(p) : NULL;
	pthread_mutex_unlock(&lock);
	pack_free(p);
}

const struct pack_index *pack_index_of(const struct pack *p)
{
	return &p->x;
}

const struct fileid *pack_id(const struct pack *p)
{
	return &p->src.id;
}

bool pack_is_one(const char *path)
{
	uint8_t magic[sizeof(PACK_MAGIC) - 1];
	struct source src;
	bool is;

	if (store_of(path)->open(&src, path, NULL))
		return false;
	is = src.size >= sizeof(magic) &&
	     source_read_exact(&src, magic, sizeof(magic), 0, NULL) == 0 &&
	     memcmp(magic, PACK_MAGIC, sizeof(magic)) == 0;
	source_close(&src);
	return is;
}
