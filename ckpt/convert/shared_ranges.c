/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/convert/shared_ranges.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/vfile.h"

void takers_init(struct takers *t)
{
	*t = (struct takers){ 0 };
	pthread_mutex_init(&t->lock, NULL);
}

void takers_done(struct takers *t)
{
	for (size_t i = 0; i < t->n; i++)
		vfile_free(t->v[i].f);
	arena_done(&t->arena);
	pthread_mutex_destroy(&t->lock);
}

/* --- who takes what --------------------------------------------------------- */

static int add_run(struct takers *t, const struct taker_run *run)
{
	void *const grown = arena_grow(&t->arena, t->runs, t->nruns,
				       &t->runs_cap, t->nruns + 1,
				       sizeof(*t->runs));

	if (!grown)
		return -ENOMEM;
	t->runs = grown;
	t->runs[t->nruns++] = *run;
	return 0;
}

static int add_runs(struct takers *t, uint32_t taker, const struct vfile *f)
{
	const struct extent_map *const m = vfile_extents(f);
	int rc = 0;

	for (size_t i = 0; !rc && i < m->n; i++) {
		const struct extent *const e = &m->v[i];
		const struct taker_run run = {
			.shards = vfile_shards(f),
			.shard = e->shard,
			.taker = taker,
			.from = e->from,
			.end = e->from + (e[1].start - e->start),
			.at = e->start,
		};

		if (e->kind == EXTENT_SHARD)
			rc = add_run(t, &run);
	}
	return rc;
}

int takers_add(struct takers *t, const char *path, struct vfile *f)
{
	char *const name = arena_strndup(&t->arena, path, strlen(path));
	void *const grown = arena_grow(&t->arena, t->v, t->n, &t->cap, t->n + 1,
				       sizeof(*t->v));
	int rc;

	if (!name || !grown)
		return -ENOMEM;
	t->v = grown;
	rc = add_runs(t, (uint32_t)t->n, f);
	if (!rc)
		t->v[t->n++] = (struct taker){ .path = name, .f = f };
	return rc;
}

/* By shard alone. */
static int by_shard(const struct taker_run *x, const struct taker_run *y)
{
	if (x->shards != y->shards)
		return (uintptr_t)x->shards < (uintptr_t)y->shards ? -1 : 1;
	return (x->shard > y->shard) - (x->shard < y->shard);
}

static int by_place(const void *a, const void *b)
{
	const struct taker_run *const x = a, *const y = b;
	const int order = by_shard(x, y);

	return order ? order : (x->from > y->from) - (x->from < y->from);
}

void takers_sort(struct takers *t)
{
	if (t->nruns)
		qsort(t->runs, t->nruns, sizeof(*t->runs), by_place);
	for (size_t i = 0; i < t->nruns; i++) {
		struct taker_run *const r = &t->runs[i];

		r->reach = r->end;
		if (i && !by_shard(r, r - 1) && r[-1].reach > r->reach)
			r->reach = r[-1].reach;
	}
}

/* Index behind the last run of the shard that begins before `end`. */
static size_t find(const struct takers *t, const struct shardcache *shards,
		   uint32_t shard, uint64_t end)
{
	const struct taker_run key = { .shards = shards, .shard = shard,
				       .from = end };
	size_t lo = 0, hi = t->nruns;

	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;

		if (by_place(&t->runs[mid], &key) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

bool takers_next(const struct takers *t, const struct shardcache *shards,
		 uint32_t shard, uint64_t from, uint64_t end, size_t *pos,
		 struct taker_run *run)
{
	if (*pos == TAKERS_BEGIN)
		*pos = find(t, shards, shard, end);
	while (*pos) {
		const struct taker_run *const r = &t->runs[--*pos];

		if (r->shards != shards || r->shard != shard || r->reach <= from)
			break;
		if (r->end <= from)
			continue;
		*run = *r;
		if (run->from < from) {
			run->at += from - run->from;
			run->from = from;
		}
		if (run->end > end)
			run->end = end;
		return true;
	}
	*pos = 0;
	return false;
}

/* --- what they have ---------------------------------------------------------- */

int takers_wrote(struct takers *t, struct taker *k, const struct checksum *part)
{
	void *grown;

	pthread_mutex_lock(&t->lock);
	grown = arena_grow(&t->arena, k->parts, k->n, &k->cap, k->n + 1,
			   sizeof(*k->parts));
	if (grown) {
		k->parts = grown;
		k->parts[k->n++] = *part;
	}
	pthread_mutex_unlock(&t->lock);
	return grown ? 0 : -ENOMEM;
}

static int by_offset(const void *a, const void *b)
{
	const struct checksum *const x = a, *const y = b;

	return (x->off > y->off) - (x->off < y->off);
}

void taker_settle(struct taker *k)
{
	uint64_t end = 0;
	size_t n = 0;

	if (k->n)
		qsort(k->parts, k->n, sizeof(*k->parts), by_offset);
	for (size_t i = 0; i < k->n; i++) {
		struct checksum part = k->parts[i];
		const uint64_t stop = part.off + part.len;

		if (stop <= end)
			continue;
		if (part.off < end) {
			part.off = end;
			part.len = stop - end;
			part.unsummed = true;
		}
		k->parts[n++] = part;
		end = stop;
	}
	k->n = n;
}

/* The first part that ends behind `off`, or the number of parts. */
static size_t part_behind(const struct taker *k, uint64_t off)
{
	size_t lo = 0, hi = k->n;

	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;

		if (k->parts[mid].off + k->parts[mid].len <= off)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* What of taker `k` is not written, from `off` on. */
static bool next_gap(const struct taker *k, uint64_t off, struct checksum *gap)
{
	const struct extent_map *const m = vfile_extents(k->f);

	while (off < vfile_size(k->f)) {
		const struct extent *const e = &m->v[extent_find(m, off)];
		const size_t i = part_behind(k, off);
		uint64_t end = e[1].start;

		if (e->kind == EXTENT_LITERAL || e->kind == EXTENT_ZERO) {
			off = end;
		} else if (i < k->n && k->parts[i].off <= off) {
			off = k->parts[i].off + k->parts[i].len;
		} else {
			if (i < k->n && k->parts[i].off < end)
				end = k->parts[i].off;
			*gap = (struct checksum){ .off = off, .len = end - off };
			return true;
		}
	}
	return false;
}

/* Are these bytes, which lie in one extent, those of a taker before `k`, too?  It
 * lacks them then: who reads bytes gives them to all takers. */
static bool is_anothers(const struct takers *t, uint32_t k,
			const struct checksum *gap)
{
	const struct vfile *const f = t->v[k].f;
	const struct extent_map *const m = vfile_extents(f);
	const struct extent *const e = &m->v[extent_find(m, gap->off)];
	const uint64_t from = e->from + (gap->off - e->start);
	size_t pos = TAKERS_BEGIN;
	struct taker_run run;

	if (e->kind != EXTENT_SHARD)
		return false;
	while (takers_next(t, vfile_shards(f), e->shard, from, from + gap->len,
			   &pos, &run))
		if (run.taker < k && run.end - run.from == gap->len)
			return true;
	return false;
}

bool takers_gap(const struct takers *t, uint32_t k, struct checksum *gap)
{
	while (next_gap(&t->v[k], gap->off + gap->len, gap))
		if (!is_anothers(t, k, gap))
			return true;
	return false;
}
