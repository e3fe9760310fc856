/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening packs.  All of a context who open a path share one pack, since plan, readers and
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
#include "ckpt/base/uckpt.h"
#include "ckpt/cache/far.h"

/* Packs that stay so. */
#define KEPT_MAX 4

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
	p->cache = cache_new(
		p->u, &(struct cache_config){
			      .fill = pack_fill,
			      .ctx = p,
			      .far = pack_is_requested(p) ? NULL : &local,
			      .crosses = true });
	return p->tables && p->cache ? 0 : errmsg_nomem(err, p->src.name);
}

int pack_open_source(struct uckpt *u, const struct source *src,
		     struct pack **out, struct errmsg *err)
{
	struct pack *const p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return errmsg_nomem(err, src->name);
	pthread_mutex_init(&p->lock, NULL);
	p->src = *src;
	p->u = u;
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
static struct pack *ref_open(struct uckpt *u, const char *path)
{
	struct fileid id;
	struct attrs a;
	struct pack *p;

	if (store_stat(u, path, false, &a, NULL))
		return NULL;
	fileid_from_stat(&a.st, &id);
	pthread_mutex_lock(&u->lock);
	p = u->packs;
	while (p &&
	       (strcmp(p->path, path) != 0 || !fileid_equal(&p->src.id, &id)))
		p = p->next;
	if (p)
		p->users++;
	pthread_mutex_unlock(&u->lock);
	return p;
}

int pack_open(struct uckpt *u, const char *path, struct pack **out,
	      struct errmsg *err)
{
	struct pack *p = ref_open(u, path);
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
	rc = store_open(u, &src, copy, err);
	if (!rc && (rc = pack_open_source(u, &src, &p, err)))
		source_close(&src);
	if (rc) {
		free(copy);
		return rc;
	}
	/* Another thread may have opened it meanwhile; then there are two. */
	pthread_mutex_lock(&u->lock);
	p->path = copy;
	p->users = 1;
	p->next = u->packs;
	u->packs = p;
	pthread_mutex_unlock(&u->lock);
	*out = p;
	return 0;
}

/* Take the oldest pack without a user out of the list, but for those that are kept; NULL if
 * there is none.  Called with the context's lock held. */
static struct pack *take_surplus(struct uckpt *u, unsigned keep)
{
	for (struct pack **at = &u->packs; *at; at = &(*at)->next) {
		struct pack *const q = *at;

		if (q->users || (keep && pack_is_requested(q) && keep--))
			continue;
		*at = q->next;
		return q;
	}
	return NULL;
}

void pack_close(struct pack *p)
{
	if (p && p->path) {
		struct uckpt *const u = p->u;

		pthread_mutex_lock(&u->lock);
		p = --p->users == 0 ? take_surplus(u, KEPT_MAX) : NULL;
		pthread_mutex_unlock(&u->lock);
	}
	pack_free(p);
}

void pack_close_kept(struct uckpt *u)
{
	struct pack *p;

	while ((p = take_surplus(u, 0)))
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

bool pack_is_one(struct uckpt *u, const char *path)
{
	uint8_t magic[sizeof(PACK_MAGIC) - 1];
	struct source src;
	bool is;

	if (store_open(u, &src, path, NULL))
		return false;
	is = src.size >= sizeof(magic) &&
	     source_read_exact(&src, magic, sizeof(magic), 0, NULL) == 0 &&
	     memcmp(magic, PACK_MAGIC, sizeof(magic)) == 0;
	source_close(&src);
	return is;
}
