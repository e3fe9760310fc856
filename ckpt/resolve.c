/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shard maps on demand.
 *
 * Rank 0's map comes first: it fixes the layout (alignment paddings are only
 * recorded in optimizer shards) and is what the others are compared with.  A
 * reader of one parameter needs the few ranks that hold it; only those are
 * opened.
 */
#include "ckpt/resolve.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/errmsg.h"
#include "ckpt/extent.h"
#include "ckpt/parallel.h"

static int check_degrees(const struct resolve *r, struct errmsg *err)
{
	const struct ckdir *const d = &r->dir;

	if (d->nlayer)
		return errmsg_set(err, -ENOTSUP,
				  "%s: pipeline-parallel checkpoints (layer_*"
				  " files) are not supported yet", d->path);
	if (d->mp_degree > 1)
		return errmsg_set(err, -ENOTSUP,
				  "%s: model-parallel checkpoints (%u mp ranks)"
				  " are not supported yet", d->path,
				  d->mp_degree);
	/* With the last ranks' files gone the grid still looks complete. */
	if (r->cat.dp_world_size > 0 &&
	    (uint64_t)r->cat.dp_world_size > d->dp_degree)
		return errmsg_set(err, -EBADMSG,
				  "%s: the optimizer shards of data-parallel"
				  " ranks %u to %lld are missing: %s says"
				  " dp_world_size %lld", d->path, d->dp_degree,
				  (long long)r->cat.dp_world_size - 1,
				  d->model[0].name,
				  (long long)r->cat.dp_world_size);
	return 0;
}

int resolve_init(struct resolve *r, const char *path, struct errmsg *err)
{
	int rc;

	*r = (struct resolve){ 0 };
	pthread_mutex_init(&r->lock, NULL);
	rc = ckdir_scan(&r->dir, path, err);
	if (!rc)
		rc = catalogue_load(&r->cat, &r->dir, err);
	if (!rc)
		rc = check_degrees(r, err);
	if (!rc) {
		r->layout.ranks = r->dir.dp_degree;
		r->shards = calloc(r->dir.dp_degree, sizeof(*r->shards));
		r->loaded = calloc(r->dir.dp_degree, sizeof(*r->loaded));
		if (!r->shards || !r->loaded)
			rc = errmsg_set(err, -ENOMEM, "%s: out of memory",
					path);
	}
	if (rc)
		resolve_done(r);
	return rc;
}

void resolve_done(struct resolve *r)
{
	for (unsigned i = 0; r->loaded && i < r->dir.dp_degree; i++)
		if (atomic_load(&r->loaded[i]))
			shard_done(&r->shards[i]);
	free(r->shards);
	free(r->loaded);
	layout_done(&r->layout);
	catalogue_done(&r->cat);
	ckdir_done(&r->dir);
	pthread_mutex_destroy(&r->lock);
}

struct loading {
	struct resolve *r;
	unsigned *ranks;
	struct errmsg *err; /* of each */
};

static int load_one(struct resolve *r, unsigned rank, struct errmsg *err)
{
	struct shard *const s = &r->shards[rank];
	int rc = shard_load(s, &r->dir.optim[rank], rank, &r->cat, &r->layout,
			    err);

	if (rc == 0 && rank) {
		rc = shard_check_equal(&r->shards[0], r->dir.optim[0].path, s,
				       r->dir.optim[rank].name, err);
		if (rc)
			shard_done(s);
	}
	if (!rc)
		atomic_store(&r->loaded[rank], true);
	return rc;
}

static int load_indexed(void *ctx, size_t i)
{
	struct loading *const l = ctx;

	return load_one(l->r, l->ranks[i], &l->err[i]);
}

/* Called with the lock held. */
static int load_missing(struct resolve *r, unsigned first, unsigned end,
			struct errmsg *err)
{
	struct loading l = {
		.r = r,
		.ranks = malloc((end - first) * sizeof(*l.ranks)),
		.err = calloc(end - first, sizeof(*l.err)),
	};
	size_t n = 0;
	int rc;

	if (!l.ranks || !l.err) {
		rc = errmsg_set(err, -ENOMEM, "%s: out of memory",
				r->dir.path);
		goto out;
	}
	for (unsigned i = first; i < end; i++)
		if (!atomic_load(&r->loaded[i]))
			l.ranks[n++] = i;
	rc = parallel_for(n, r->readers ? r->readers : parallel_width(),
			  load_indexed, &l);
	for (size_t i = 0; rc && i < n; i++)
		if (l.err[i].text[0]) {
			if (err)
				*err = l.err[i];
			break;
		}
out:
	free(l.ranks);
	free(l.err);
	return rc;
}

int resolve_shards(struct resolve *r, unsigned first, unsigned end,
		   struct errmsg *err)
{
	bool all = atomic_load(&r->loaded[0]);
	int rc = 0;

	for (unsigned i = first; all && i < end; i++)
		all = atomic_load(&r->loaded[i]);
	if (all)
		return 0;
	pthread_mutex_lock(&r->lock);
	if (!atomic_load(&r->loaded[0])) {
		rc = load_one(r, 0, err);
		if (rc)
			layout_done(&r->layout);
	}
	if (!rc && first < end)
		rc = load_missing(r, first, end, err);
	pthread_mutex_unlock(&r->lock);
	return rc;
}

int resolve_profile(struct resolve *r, const struct shard **out,
		    struct errmsg *err)
{
	const int rc = resolve_shards(r, 0, 1, err);

	if (!rc)
		*out = &r->shards[0];
	return rc;
}

int resolve_extents(struct resolve *r, const struct param *p, unsigned state,
		    struct extent_map *out, struct errmsg *err)
{
	const struct partition *part;
	unsigned first, end;
	int rc = resolve_shards(r, 0, 1, err);

	assert(!p->module);
	if (rc)
		return rc;
	part = &r->layout.groups[p->group];
	partition_ranks(part, p->index, &first, &end);
	rc = resolve_shards(r, first, end, err);
	for (unsigned i = first; !rc && i < end; i++) {
		const struct shard_group *const g =
			&r->shards[i].groups[p->group];
		const struct flat *const flat =
			state ? &g->states[state - 1].flat : &g->fp32;
		const struct fragment f =
			partition_fragment(part, p->index, i);
		const size_t item = dtype_size(flat->dtype);

		assert(f.start + f.numel <= flat->numel);
		if (!extent_add(out, EXTENT_SHARD, f.numel * item, i,
				flat->offset + f.start * item, flat->dtype))
			rc = errmsg_set(err, -ENOMEM, "%s: out of memory",
					p->name);
	}
	return rc;
}
