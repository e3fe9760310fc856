/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-Core's torch_dist (megatron/core/dist_checkpointing): keys have no paths.
 *
 *   decoder.layers.REST		[layers, ...]: all layers of a model, if they are alike
 *   optimizer.state.STATE.KEY	the same for each state; fp32_param has the masters
 *   common.pt			iteration, optimizer: {state: {common_step}, param_groups},
 *				without the names of the groups' parameters
 */
#include "ckpt/dcp/megatron.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dcp/metadata.h"
#include "ckpt/dcp/optimizer.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/pickle/value.h"
#include "ckpt/roots/rootfs.h"
#include "ckpt/tensor/cast.h"

#define STATE "optimizer.state."
#define LAYERS "layers."

/* A number, or a tensor with one. */
static int read_common_step(const struct ptfile *pt, const struct value *v, int64_t *out,
			    struct errmsg *err)
{
	uint8_t raw[16];
	struct tensor t;
	uint64_t at;
	double step;
	int rc;

	if (!tensor_is(v)) {
		value_get_int(v, out);
		return 0;
	}
	rc = ptfile_run(pt, v, "common_step", &t, &at, err);
	if (rc || t.numel != 1 || !cast_knows(t.dtype))
		return rc;
	rc = source_read(&pt->src, raw, dtype_size(t.dtype), at, err);
	if (rc)
		return rc;
	cast_to_double(t.dtype, raw, &step, 1);
	*out = step >= 0 && step < 1e15 ? (int64_t)step : 0;
	return 0;
}

static int read_common(struct dcp_megatron *x, struct arena *a,
		       const struct ptfile *pt, struct errmsg *err)
{
	const struct value *const optimizer = value_find(pt->root, "optimizer");
	const struct value_dict *const group =
		value_pairs(value_item(value_find(optimizer, "param_groups"), 0));

	x->options = value_new(a, VALUE_DICT);
	for (size_t i = 0; group && i < group->n; i++)
		if (dcp_optimizer_is_option(group->v[i].key) &&
		    dcp_optimizer_is_option(group->v[i].val))
			value_put(a, x->options, pickle_copy(a, group->v[i].key),
				  pickle_copy(a, group->v[i].val));
	value_get_int(value_find(pt->root, "iteration"), &x->iteration);
	if (!x->options || a->failed)
		return errmsg_nomem(err, pt->src.name);
	return read_common_step(pt, value_find_path(optimizer, "state", "common_step",
						    NULL), &x->step, err);
}

/* The place of a stack's missing layer number in a key, or NULL. */
static const char *find_stack(const char *key)
{
	const char *p = strstr(key, LAYERS);

	if (!p || (p > key && p[-1] != '.'))
		return NULL;
	p += strlen(LAYERS);
	return *p < '0' || *p > '9' ? p : NULL;
}

/* Give an item the path of a parameter, or of its state. */
static bool set_path(struct arena *a, struct dcp_item *t, const char *state,
		     const char *name)
{
	t->depth = state ? 4 : 2;
	t->path = arena_alloc(a, t->depth * sizeof(*t->path));
	if (!t->path || !name)
		return false;
	t->path[0] = state ? "optimizer" : "model";
	t->path[t->depth - (state ? 2 : 1)] = name;
	if (state) {
		t->path[1] = "state";
		t->path[3] = state;
	}
	return true;
}

/* Layer `layer` of a stack. */
static int take_layer(struct dcp_metadata *m, const struct dcp_item *stack,
		      uint64_t layer, struct dcp_item *out, const char *dir,
		      struct errmsg *err)
{
	*out = *stack;
	out->is_layer = true;
	out->ndim--;
	out->shape++;
	out->numel /= stack->shape[0];
	out->nchunks = 0;
	out->chunks = arena_alloc(&m->arena, (stack->nchunks + 1) *
						     sizeof(*out->chunks));
	for (size_t i = 0; out->chunks && i < stack->nchunks; i++) {
		const struct dcp_chunk *const c = &stack->chunks[i];

		if (c->size[0] != 1)
			return errmsg_set(err, -ENOTSUP,
					  "%s: %s: several layers in one block",
					  dir, stack->key);
		if (c->offset[0] != layer)
			continue;
		out->chunks[out->nchunks] = *c;
		out->chunks[out->nchunks].offset++;
		out->chunks[out->nchunks++].size++;
	}
	return out->chunks ? 0 : errmsg_nomem(err, dir);
}

static int add_item(struct dcp_metadata *m, const struct dcp_item *t)
{
	if (!arena_reserve(&m->arena, &m->items, m->nitems, &m->cap, m->nitems + 1,
			   sizeof(*m->items)))
		return -ENOMEM;
	m->items[m->nitems++] = *t;
	return 0;
}

static int arrange(struct dcp_metadata *m, struct dcp_item t, const char *dir,
		   struct errmsg *err)
{
	const bool is_state = strncmp(t.key, STATE, strlen(STATE)) == 0;
	const char *const state = is_state ? t.key + strlen(STATE) : NULL;
	const char *const dot = state ? strchr(state, '.') : NULL;
	const char *const name = dot ? dot + 1 : t.key;
	const char *const rest = t.is_tensor && t.ndim ? find_stack(name) : NULL;
	const char *const field =
		dot ? arena_strndup(&m->arena, state, (size_t)(dot - state)) : NULL;
	int rc = 0;

	if (!t.is_tensor)
		return 0; /* states of modules that are not tensors */
	if (!rest)
		return set_path(&m->arena, &t, field, name) && !add_item(m, &t)
			       ? 0
			       : errmsg_nomem(err, dir);
	for (uint64_t i = 0; !rc && i < t.shape[0] && t.numel; i++) {
		struct dcp_item layer;
		char *text;

		rc = take_layer(m, &t, i, &layer, dir, err);
		if (rc || asprintf(&text, "%.*s%llu.%s", (int)(rest - name), name,
				   (unsigned long long)i, rest) < 0)
			return rc ?: errmsg_nomem(err, dir);
		if (!set_path(&m->arena, &layer, field,
			      arena_strdup(&m->arena, text)) ||
		    add_item(m, &layer))
			rc = errmsg_nomem(err, dir);
		free(text);
	}
	return rc;
}

static int arrange_all(struct dcp_metadata *m, const char *dir, struct errmsg *err)
{
	const struct dcp_item *const items = m->items;
	const size_t n = m->nitems;
	int rc = 0;

	m->items = NULL;
	m->nitems = m->cap = 0;
	for (size_t i = 0; !rc && i < n; i++)
		rc = arrange(m, items[i], dir, err);
	return rc;
}

int dcp_megatron_find(struct dcp_megatron *x, struct dcp_metadata *m, struct uckpt *u,
		      const char *dir, struct errmsg *err)
{
	struct source src;
	struct ptfile pt;
	char *path;
	int rc;

	*x = (struct dcp_megatron){ 0 };
	if (asprintf(&path, "%s/" DCP_MEGATRON_COMMON, dir) < 0)
		return errmsg_nomem(err, dir);
	rc = rootfs_open(u, &src, path, err);
	if (!rc) {
		rc = ptfile_open_source(&pt, &src, err);
		if (!rc) {
			x->found = true;
			rc = read_common(x, &m->arena, &pt, err);
			ptfile_close(&pt);
		}
		if (!rc && dcp_metadata_add_file(m, path) < 0)
			rc = errmsg_nomem(err, dir);
		rc = rc ?: arrange_all(m, dir, err);
	} else if (beneath_is_missing(rc)) {
		rc = 0;
	}
	free(path);
	return rc;
}
