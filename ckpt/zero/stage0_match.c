/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matches the optimizer's numbers with parameters.  An optimizer numbers its parameters through its
 * groups, each of which has some of the model's parameters in order; neither their names nor the
 * choice is recorded.  Shapes decide: in all usual groups, matrices decay and vectors do not.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/cast.h"
#include "ckpt/io/shards.h"
#include "ckpt/zero/stage0_build.h"

#define CHECKED_MAX 32u /* elements compared of each master */

struct shaped {
	const struct stored *like;
	const char *key;
	size_t i;
};

static int by_shape(const void *a, const void *b)
{
	const struct shaped *x = a, *y = b;

	return SHAPE_ORDER(x->like, y->like) ?: ORDER(x->i, y->i);
}

/* Do all parameters have numbers, in one group? */
static bool is_whole(const struct stage0_builder *b)
{
	const struct stage0_entry *e = b->entries;
	const size_t n = b->nparams;

	if (n != b->ndense || !n || e[0].group != e[n - 1].group)
		return false;
	for (size_t i = 0; i < n; i++)
		if (e[i].like && SHAPE_ORDER(e[i].like->tensor, b->params[i]->weight))
			return false;
	return true;
}

/* Count the leading elements that have the first one's shape. */
static size_t run_of(const struct shaped *v, size_t n)
{
	size_t k = 0;

	while (k < n && SHAPE_ORDER(v[k].like, v->like) == 0)
		k++;
	return k;
}

/* Match the entries of one shape with the parameters of that shape. */
static int match_class(struct stage0_builder *b, const struct shaped *e, size_t ne,
		       const struct shaped *p, size_t np)
{
	struct stage0_entry *entries = b->entries;

	if (!np)
		return ERRMSG_FILE(b, -ENOTSUP, "%s: no parameter of the model has this shape",
				   e->key);
	if (ne != np)
		return ERRMSG_FILE(b, -ENOTSUP,
				   "the model has %zu parameters of the shape of"
				   " %s, and the optimizer %zu: which ones is not recorded",
				   np, b->params[p->i]->name, ne);
	if (entries[e[0].i].group != entries[e[ne - 1].i].group)
		return ERRMSG_FILE(b, -ENOTSUP,
				   "several groups of the optimizer have"
				   " parameters of the shape of %s: which ones is not recorded",
				   b->params[p->i]->name);
	for (size_t i = 0; i < ne; i++)
		entries[e[i].i].param = b->params[p[i].i];
	return 0;
}

static int match_shapes(struct stage0_builder *b, struct shaped *p, struct shaped *e)
{
	const size_t n = b->nparams;
	size_t ne = 0, i = 0;
	int rc = 0;

	for (size_t k = 0; k < n; k++)
		p[k] = (struct shaped){ b->params[k]->weight, b->params[k]->name, k };
	for (size_t k = 0; k < b->ndense; k++)
		if (b->entries[k].like)
			e[ne++] = (struct shaped){ b->entries[k].like->tensor,
						   b->entries[k].like->key, k };
	qsort(p, n, sizeof(*p), by_shape);
	qsort(e, ne, sizeof(*e), by_shape);
	for (size_t k = 0, len; !rc && k < ne; k += len) {
		size_t same;

		len = run_of(e + k, ne - k);
		while (i < n && SHAPE_ORDER(p[i].like, e[k].like) < 0)
			i++;
		same = i < n && SHAPE_ORDER(p[i].like, e[k].like) == 0
			       ? run_of(p + i, n - i)
			       : 0;
		rc = match_class(b, e + k, len, p + i, same);
	}
	return rc;
}

int stage0_match(struct stage0_builder *b)
{
	struct shaped *v;
	int rc;

	if (is_whole(b)) {
		for (size_t i = 0; i < b->nparams; i++)
			b->entries[i].param = b->params[i];
		return 0;
	}
	v = calloc(b->nparams + b->ndense + 1, sizeof(*v));
	if (!v)
		return errmsg_nomem(b->err, b->file);
	rc = match_shapes(b, v, v + b->nparams);
	free(v);
	return rc;
}

int stage0_match_flat(const struct stage0_builder *b, size_t *owners)
{
	const struct stage0_entry *e = b->entries;
	const size_t n = b->nentries;
	uint64_t sum[2] = { 0 }; /* for vectors, for matrices */
	size_t group[2] = { 0 };

	for (size_t i = 0; i < b->nparams; i++)
		sum[b->params[i]->weight->ndim > 1] += b->params[i]->weight->numel;
	if (n == 2)
		group[sum[1] != e[0].like->tensor->numel] = 1;
	if (n == 1 ? e[0].like->tensor->numel != sum[0] + sum[1]
		   : n != 2 || e[group[0]].like->tensor->numel != sum[0] ||
			     e[group[1]].like->tensor->numel != sum[1])
		return ERRMSG_FILE(b, -ENOTSUP,
				   "the optimizer's %zu groups have neither all"
				   " parameters of the model nor its matrices and its"
				   " vectors: which ones is not recorded",
				   n);
	for (size_t i = 0; i < b->nparams; i++)
		owners[i] = group[b->params[i]->weight->ndim > 1];
	return 0;
}

/* Read the first `n` elements at a place. */
static int read_first(const struct stage0_builder *b, struct shards *files,
		      const struct stage0_place *p, float *out, size_t n)
{
	uint8_t raw[CHECKED_MAX * sizeof(double)];
	const int rc = shards_read(files, p->file, raw, n * dtype_size(p->dtype), p->at, b->err);

	if (!rc)
		cast_to_float(p->dtype, raw, out, n);
	return rc;
}

static int check_master(const struct stage0_builder *b, struct shards *files,
			const struct stage0_owned *p)
{
	const struct stored *w = p->weight;
	const size_t n = w->numel < CHECKED_MAX ? w->numel : CHECKED_MAX;
	const struct stage0_place own = stage0_place_of(w);
	float master[CHECKED_MAX], weight[CHECKED_MAX];
	int rc;

	if (p->places->at == own.at && p->places->file == own.file)
		return 0;
	rc = read_first(b, files, p->places, master, n) ?: read_first(b, files, &own, weight, n);
	for (size_t k = 0; !rc && k < n; k++)
		if (fabsf(master[k] - weight[k]) > fabsf(master[k]) / 256 + 1e-7f)
			rc = ERRMSG_FILE(b, -ENOTSUP,
		"what the optimizer has for %s by its shape is another parameter: which one is not"
					 " recorded",
					 p->name);
	return rc;
}

int stage0_match_check(const struct stage0_builder *b)
{
	const struct zero_dir *d = b->s->dir;
	struct shards *files = checkpoint_shards(d->u, d->files, d->nfiles);
	const struct stage0_group *v = b->o->groups;
	int rc = files ? 0 : errmsg_nomem(b->err, b->file);

	for (size_t g = 0; g < b->o->ngroups; g++)
		for (size_t i = 0; !rc && i < v[g].nparams; i++)
			rc = check_master(b, files, &v[g].params[i]);
	shards_free(files);
	return rc;
}
