/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which parameter has which number.  An optimizer numbers its parameters through its
 * groups, each of which has some of the model's parameters in their order; their names are
 * not recorded, nor which parameters it has.  Shapes tell: matrices decay and vectors do
 * not, in all usual groups.
 */
#include "ckpt/dcp/stage0_match.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dcp/blobs.h"
#include "ckpt/dcp/model.h"
#include "ckpt/tensor/cast.h"

#define CHECKED_MAX 32u /* elements of each master */

struct shaped {
	const struct dcp_item *like;
	size_t i;
};

static int compare_shapes(const struct dcp_item *a, const struct dcp_item *b)
{
	if (a->ndim != b->ndim)
		return a->ndim < b->ndim ? -1 : 1;
	for (unsigned d = 0; d < a->ndim; d++)
		if (a->shape[d] != b->shape[d])
			return a->shape[d] < b->shape[d] ? -1 : 1;
	return 0;
}

static int by_shape(const void *a, const void *b)
{
	const struct shaped *const x = a, *const y = b;

	return compare_shapes(x->like, y->like) ?: (x->i < y->i ? -1 : x->i > y->i);
}

/* Do all parameters have numbers, in one group? */
static bool is_whole(const struct stage0_param *params, size_t n,
		     const struct stage0_entry *e, size_t nentries)
{
	if (n != nentries || !n || e[0].group != e[n - 1].group)
		return false;
	for (size_t i = 0; i < n; i++)
		if (e[i].like && !dcp_same_shape(e[i].like, params[i].weight))
			return false;
	return true;
}

/* The number of elements from the first on that have its shape. */
static size_t run_of(const struct shaped *v, size_t n)
{
	size_t k = 0;

	while (k < n && dcp_same_shape(v[k].like, v->like))
		k++;
	return k;
}

/* Match the entries of one shape with the parameters of that shape. */
static int match_class(const struct shaped *e, size_t ne, const struct shaped *p,
		       size_t np, const struct stage0_param *params,
		       struct stage0_entry *entries, const char *file,
		       struct errmsg *err)
{
	if (!np)
		return errmsg_set(
			err, -ENOTSUP,
			"%s: %s: no parameter of the model has this shape",
			file, e->like->key);
	if (ne != np)
		return errmsg_set(err, -ENOTSUP,
				  "%s: the model has %zu parameters of the shape of"
				  " %s, and the optimizer %zu: which ones is not"
				  " recorded", file, np, params[p->i].name, ne);
	if (entries[e[0].i].group != entries[e[ne - 1].i].group)
		return errmsg_set(err, -ENOTSUP,
				  "%s: several groups of the optimizer have"
				  " parameters of the shape of %s: which ones is not"
				  " recorded", file, params[p->i].name);
	for (size_t i = 0; i < ne; i++)
		entries[e[i].i].param = &params[p[i].i];
	return 0;
}

static int match_shapes(struct shaped *p, struct shaped *e,
			const struct stage0_param *params, size_t n,
			struct stage0_entry *entries, size_t nentries,
			const char *file, struct errmsg *err)
{
	size_t ne = 0, i = 0;
	int rc = 0;

	for (size_t k = 0; k < n; k++)
		p[k] = (struct shaped){ params[k].weight, k };
	for (size_t k = 0; k < nentries; k++)
		if (entries[k].like)
			e[ne++] = (struct shaped){ entries[k].like, k };
	qsort(p, n, sizeof(*p), by_shape);
	qsort(e, ne, sizeof(*e), by_shape);
	for (size_t k = 0, len; !rc && k < ne; k += len) {
		size_t same;

		len = run_of(e + k, ne - k);
		while (i < n && compare_shapes(p[i].like, e[k].like) < 0)
			i++;
		same = i < n && dcp_same_shape(p[i].like, e[k].like)
			       ? run_of(p + i, n - i)
			       : 0;
		rc = match_class(e + k, len, p + i, same, params, entries, file,
				 err);
	}
	return rc;
}

int stage0_match(const struct stage0_param *params, size_t n,
		 struct stage0_entry *entries, size_t nentries, const char *file,
		 struct errmsg *err)
{
	struct shaped *v;
	int rc;

	if (is_whole(params, n, entries, nentries)) {
		for (size_t i = 0; i < n; i++)
			entries[i].param = &params[i];
		return 0;
	}
	v = calloc(n + nentries + 1, sizeof(*v));
	if (!v)
		return errmsg_nomem(err, file);
	rc = match_shapes(v, v + n, params, n, entries, nentries, file, err);
	free(v);
	return rc;
}

int stage0_match_flat(const struct stage0_param *params, size_t n,
		      const uint64_t *numel, size_t ngroups, size_t *owners,
		      const char *file, struct errmsg *err)
{
	uint64_t sum[2] = { 0 }; /* of vectors, of matrices */
	size_t group[2] = { 0 };

	for (size_t i = 0; i < n; i++)
		sum[params[i].weight->ndim > 1] += params[i].weight->numel;
	if (ngroups == 2)
		group[sum[1] != numel[0]] = 1;
	if (ngroups == 1 ? numel[0] != sum[0] + sum[1]
			 : ngroups != 2 || numel[group[0]] != sum[0] ||
				   numel[group[1]] != sum[1])
		return errmsg_set(err, -ENOTSUP,
				  "%s: the optimizer's %zu groups have neither all"
				  " parameters of the model nor its matrices and its"
				  " vectors: which ones is not recorded", file,
				  ngroups);
	for (size_t i = 0; i < n; i++)
		owners[i] = group[params[i].weight->ndim > 1];
	return 0;
}

static int check_master(const struct dcp_param *p, struct dcp_blobs *b,
			const char *file, struct errmsg *err)
{
	const size_t n = p->weight->numel < CHECKED_MAX ? p->weight->numel
							: CHECKED_MAX;
	float master[CHECKED_MAX], weight[CHECKED_MAX];
	int rc = dcp_blobs_read(b, p->master, DTYPE_F32, master, 0, n, err) ?:
		 dcp_blobs_read(b, p->weight, DTYPE_F32, weight, 0, n, err);

	for (size_t k = 0; !rc && k < n; k++)
		if (fabsf(master[k] - weight[k]) > fabsf(master[k]) / 256 + 1e-7f)
			rc = errmsg_set(err, -ENOTSUP,
					"%s: what the optimizer has for %s by its"
					" shape is another parameter: which one is not"
					" recorded", file, p->name);
	return rc;
}

int stage0_match_check(const struct dcp_model *o, struct dcp_blobs *b, const char *file,
		       struct errmsg *err)
{
	int rc = 0;

	for (size_t g = 0; g < o->ngroups; g++)
		for (size_t i = 0; !rc && i < o->groups[g].nparams; i++)
			if (o->groups[g].params[i].master !=
			    o->groups[g].params[i].weight)
				rc = check_master(&o->groups[g].params[i], b, file,
						  err);
	return rc;
}
