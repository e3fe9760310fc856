/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a model that are not parameters of its optimizer: buffers, frozen parameters, and
 * tied parameters, which are saved once under each name.
 *
 * A state dict does not distinguish buffers from frozen parameters.  The distinction matters for
 * stage 3, whose module has the elements of buffers but not of parameters; an engine loads only
 * these from it:
 *
 *	integers, names of well-known buffers			a buffer
 *	in several chunks: FSDP cuts only parameters		a parameter
 *	has the last name and the dimensions of a trained one,
 *	or is a weight or a bias				a parameter
 *	whole, where all that is trained was cut		a buffer
 *	all others						parameters if there are such
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_optimizer.h"
#include "ckpt/foreign/dcp_storage.h"

/* Do two chunks have the same elements, judging by their records' checksums? */
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
		const struct dcp_entry *w = f->weights.v[i].entry;

		if (w->owner && f->compared++ < TIES_MAX)
			rc = dcp_is_tied(f, e->entry, w);
		e->same = rc > 0 ? w->owner : NULL;
	}
	return rc < 0 ? rc : 0;
}

/* Can the tensor be shown? 1, 0, or an error.  Complex numbers that are conjugated when read cannot
 * be shown; only their records reveal them. */
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

/* Return the last component of a tensor's name. */
static const char *last_name(const struct dcp_entry *t)
{
	const char *key = t->path[t->depth - 1], *dot = strrchr(key, '.');

	return dot ? dot + 1 : key;
}

bool dcp_is_known_buffer(const struct dcp_entry *t)
{
	static const char *const names[] = {
		"running_mean",	 "running_var",		   /* torch's batchnorm.py */
		"inv_freq",	 "original_inv_freq",	   /* transformers: rotary embeddings, */
		"masked_bias",	 "final_logits_bias",	   /* attention, heads */
		"expert_bias",	 "e_score_correction_bias", /* and routers, as torchtitan's */
		"freqs_cis",
	};
	/* An attention mask, as in minGPT. */
	bool found = t->ndim == 4 && t->shape[0] == 1 && t->shape[1] == 1 &&
		     t->shape[2] == t->shape[3] && strcmp(last_name(t), "bias") == 0;

	for (size_t i = 0; i < COUNT(names) && !found; i++)
		found = strcmp(last_name(t), names[i]) == 0;
	return found;
}

/* The trained parameters, by the last components of their names. */
struct trained {
	const struct dcp_entry **v;
	size_t n;
	bool cut; /* all trained parameters have several chunks */
};

static int by_last_name(const void *a, const void *b)
{
	const struct dcp_entry *x = *(struct dcp_entry *const *)a;
	const struct dcp_entry *y = *(struct dcp_entry *const *)b;

	return strcmp(last_name(x), last_name(y)) ?: ORDER(x->ndim, y->ndim);
}

static bool list_trained(const struct dcp_reader *f, struct trained *l)
{
	*l = (struct trained){ .v = calloc(f->weights.n + 1, sizeof(const struct dcp_entry *)),
			       .cut = true };
	for (size_t i = 0; l->v && i < f->weights.n; i++) {
		if (!f->weights.v[i].entry->owner)
			continue;
		l->cut &= f->weights.v[i].entry->nchunks > 1;
		l->v[l->n++] = f->weights.v[i].entry;
	}
	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), by_last_name);
	return l->v;
}

/* Does a tensor that is not a known buffer look like a parameter? */
static bool is_like_param(const struct trained *l, const struct dcp_entry *t)
{
	const char *name = last_name(t);

	return t->nchunks > 1 || strcmp(name, "weight") == 0 || strcmp(name, "bias") == 0 ||
	       (l->n && bsearch(&t, l->v, l->n, sizeof(*l->v), by_last_name));
}

static bool is_certain_buffer(const struct dcp_entry *t)
{
	/* Quantized weights are integers, too. */
	return t->is_buffer || dcp_is_known_buffer(t) ||
	       (!dtype_is_floating(t->dtype) && strcmp(last_name(t), "weight") != 0);
}

/* Decide which tensors outside of the optimizer are buffers. */
static int find_buffers(const struct dcp_reader *f)
{
	const struct dcp_model *o = f->o;
	struct trained l;
	bool frozen = false;

	if (!list_trained(f, &l))
		return errmsg_nomem(f->err, f->file);
	for (size_t i = 0; i < o->nextras; i++) {
		const struct dcp_extra *e = &o->extras[i];

		frozen |= !e->same && !is_certain_buffer(e->entry) && is_like_param(&l, e->entry);
	}
	for (size_t i = 0; i < o->nextras; i++) {
		struct dcp_entry *t = o->extras[i].entry;

		t->is_buffer = is_certain_buffer(t) ||
			       (!is_like_param(&l, t) && (!frozen || (l.cut && l.n)));
	}
	free(l.v);
	return 0;
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
		struct dcp_extra e = { t->name, t, NULL };

		if (!t->name || t->owner)
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
	return rc < 0 ? rc : f->a->failed ? errmsg_nomem(f->err, f->file) : find_buffers(f);
}
