/* SPDX-License-Identifier: Apache-2.0 */
/* What a model has beside the parameters of its optimizer: buffers, frozen parameters, and
 * other names of parameters, which are saved as often as they have names. */
#include <errno.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_optimizer.h"
#include "ckpt/foreign/dcp_storage.h"

/* Do two chunks have the same elements?  Records have checksums of them. */
static int same_elements(const struct dcp_reader *f, const struct dcp_entry *a, struct dcp_chunk *x,
			 const struct dcp_entry *b, struct dcp_chunk *y)
{
	int rc;

	if (memcmp(x->offset, y->offset, a->ndim * sizeof(*x->offset)) ||
	    memcmp(x->size, y->size, a->ndim * sizeof(*x->size)))
		return 0;
	if (!x->numel || (x->file == y->file && x->at == y->at))
		return 1;
	rc = dcp_storage_locate(f->b, a, x, f->err) ?: dcp_storage_locate(f->b, b, y, f->err);
	return rc ? rc : x->crc && x->crc == y->crc;
}

int dcp_is_tied(const struct dcp_reader *f, const struct dcp_entry *t,
		const struct dcp_entry *weight)
{
	int rc = t->dtype == weight->dtype && t->nchunks == weight->nchunks && t->numel &&
		 dcp_same_shape(t, weight);

	for (size_t i = 0; rc == 1 && i < t->nchunks; i++)
		rc = same_elements(f, t, &t->chunks[i], weight, &weight->chunks[i]);
	return rc;
}

static int find_tie(struct dcp_reader *f, struct dcp_extra *e)
{
	int rc = 0;

	for (size_t i = 0; f->o->has_optimizer && !rc && i < f->weights.n; i++) {
		const struct dcp_finding *w = &f->weights.v[i];

		if (w->owner && f->compared++ < TIES_MAX)
			rc = dcp_is_tied(f, e->entry, w->entry);
		e->same = rc > 0 ? w->owner : NULL;
	}
	return rc < 0 ? rc : 0;
}

/* Can it be shown?  1, 0, or an error.  Numbers that are conjugated when they are read, as
 * complex ones may be, cannot; only their records tell. */
static int is_shown(const struct dcp_reader *f, const struct dcp_entry *t)
{
	const bool complex =
		t->dtype == DTYPE_C32 || t->dtype == DTYPE_C64 || t->dtype == DTYPE_C128;
	int rc = 0;

	if (t->dtype == DTYPE_OTHER)
		return 0;
	for (size_t i = 0; complex && !rc && i < t->nchunks; i++)
		if (t->chunks[i].numel)
			rc = dcp_storage_locate(f->b, t, &t->chunks[i], f->err);
	return !rc ? 1 : rc == -ENOTSUP ? 0 : rc;
}

int dcp_extras_add(struct dcp_reader *f)
{
	struct dcp_model *o = f->o;
	struct bytebuf text = { 0 };
	int rc = 0;

	o->extras = arena_alloc(&o->arena, (f->m->nentries + 1) * sizeof(*o->extras));
	if (!o->extras)
		return errmsg_nomem(f->err, f->file);
	for (size_t i = 0; rc >= 0 && i < f->m->nentries; i++) {
		struct dcp_entry *t = &f->m->entries[i];
		struct dcp_extra e = { NULL, t, NULL };

		if (!dcp_is_of_model(f, t))
			continue;
		e.name = dcp_prefix_name(&f->model, t);
		if (dcp_weight_find(f, e.name)->owner)
			continue;
		rc = is_shown(f, t);
		if (!rc)
			bytebuf_add_format(&text, "%s%s", text.len ? ", "
					: "left out, as tensors of no plain form or unknown type: ",
				e.name);
		if (rc <= 0)
			continue;
		rc = find_tie(f, &e);
		o->extras[o->nextras++] = e;
	}
	if (text.len)
		dcp_model_note(o, &text);
	return rc < 0 ? rc : f->a->failed ? errmsg_nomem(f->err, f->file) : 0;
}
