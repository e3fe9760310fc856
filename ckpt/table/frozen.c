/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/table/frozen.h"

#include <errno.h>
#include <stdlib.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/table/rank_params.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/table/partition.h"

/* Find where a slot begins.  The first file decides whether it is a plain tensor, and its type. */
static int find_slot(struct frozen *f, struct frozen_param *p, const struct ptfile *pt, bool first,
		     uint64_t *at, struct errmsg *err)
{
	const uint64_t slot = partition_slot(p->numel, f->c->dp);
	const struct value *v;
	struct errmsg why;
	struct tensor t;
	int rc = p->odd ? 0 : rank_params_fragment(pt, p->name, p->index, &v, err);

	if (rc || p->odd)
		return rc;
	if (first && tensor_from_any(v, "left out", &t, &why) == 1) {
		p->odd = arena_strdup(&f->arena, why.text);
		return p->odd ? 0 : errmsg_nomem(err, pt->src.name);
	}
	rc = ptfile_run(pt, v, p->name, &t, at, err);
	if (!rc && first)
		p->dtype = t.dtype;
	if (rc || (t.dtype == p->dtype && t.numel == slot))
		return rc;
	return errmsg_set(err, -EBADMSG, "%s: %s: part has %llu elements of %s, expected %llu of %s",
			  pt->src.name, p->name, (unsigned long long)t.numel, dtype_name(t.dtype),
			  (unsigned long long)slot, dtype_name(p->dtype));
}

/* Find the slots in a rank's file.  The first file that is read determines the types. */
static int find_slots(struct frozen *f, const struct ptfile *pt, unsigned rank, bool first,
		      struct errmsg *err)
{
	uint64_t *at = arena_alloc(&f->arena, (f->n + 1) * sizeof(*at));
	int rc = at ? 0 : errmsg_nomem(err, pt->src.name);

	for (size_t i = 0; !rc && i < f->n; i++)
		rc = find_slot(f, &f->v[i], pt, first, &at[i], err);
	if (!rc)
		f->at[rank] = at;
	return rc;
}

static int read_shape(struct frozen *f, const struct value_pair *pair, const char *file,
		      struct errmsg *err)
{
	struct frozen_param *p = &f->v[f->n];
	struct errmsg why;
	struct tensor t;

	if (!value_is_cstr(pair->key))
		return 0;
	if (tensor_set_shape(&t, pair->val, &why))
		return errmsg_set(err, -EBADMSG, "%s: " KEY_FROZEN_SHAPES ": %.100s: %s", file,
				  pair->key->str.p, why.text);
	*p = (struct frozen_param){
		.name = arena_strdup(&f->arena, pair->key->str.p),
		.index = f->n,
		.ndim = t.ndim,
		.shape = arena_copy(&f->arena, t.shape, t.ndim * sizeof(*t.shape)),
		.numel = t.numel,
	};
	f->n++;
	return p->name && p->shape ? 0 : errmsg_nomem(err, file);
}

int frozen_init(struct frozen *f, const struct checkpoint *c, unsigned mp, unsigned rank,
		const struct ptfile *pt, struct errmsg *err)
{
	const struct value_dict *shapes = value_find_pairs(pt->root, KEY_FROZEN_SHAPES);
	int rc = 0;

	*f = (struct frozen){ .c = c, .mp = mp };
	if (!shapes || !shapes->n)
		return 0;
	f->v = arena_alloc(&f->arena, shapes->n * sizeof(*f->v));
	f->listed = arena_alloc(&f->arena, shapes->n * sizeof(*f->listed));
	f->at = arena_alloc(&f->arena, c->dp * sizeof(*f->at));
	if (!f->v || !f->listed || !f->at)
		rc = errmsg_nomem(err, pt->src.name);
	for (size_t i = 0; !rc && i < shapes->n; i++)
		rc = read_shape(f, &shapes->v[i], pt->src.name, err);
	if (!rc) {
		qsort(f->v, f->n, sizeof(*f->v), array_by_text);
		for (size_t i = 0; i < f->n; i++)
			f->listed[f->v[i].index] = &f->v[i];
		rc = find_slots(f, pt, rank, true, err);
	}
	if (rc)
		frozen_done(f);
	return rc;
}

void frozen_done(struct frozen *f)
{
	arena_done(&f->arena);
	*f = (struct frozen){ 0 };
}

const struct frozen_param *frozen_find(const struct frozen *f, const char *name)
{
	return array_find(f->v, f->n, sizeof(*f->v), name);
}

static int need_slots(struct frozen *f, const struct ckpt_file *file, unsigned rank,
		      struct errmsg *err)
{
	struct ptfile pt;
	int rc;

	if (f->at[rank])
		return 0;
	rc = ckpt_file_open(file, &pt, err);
	if (rc)
		return rc;
	rc = find_slots(f, &pt, rank, false, err);
	ptfile_close(&pt);
	return rc;
}

int frozen_add(struct frozen *f, const struct frozen_param *p, uint64_t first, uint64_t n,
	       struct extent_map *out, struct errmsg *err)
{
	const struct checkpoint *c = f->c;
	const uint64_t slot = partition_slot(p->numel, c->dp);
	const size_t item = dtype_size(p->dtype);

	if (p->odd)
		return errmsg_set(err, -ENOTSUP, "%s: %s: %s", c->path, p->name, p->odd);
	for (uint64_t len; n; first += len, n -= len) {
		const unsigned rank = (unsigned)(first / slot);
		const struct ckpt_file *file = c->ops->file(c, OBJECT_MODEL, f->mp, rank);
		const int rc = need_slots(f, file, rank, err);

		if (rc)
			return rc;
		len = slot - first % slot;
		len = n < len ? n : len;
		if (!extent_add(out, EXTENT_SHARD, len * item, (uint32_t)(file - c->files),
				f->at[rank][p - f->v] + first % slot * item, p->dtype))
			return errmsg_nomem(err, c->path);
	}
	return 0;
}
