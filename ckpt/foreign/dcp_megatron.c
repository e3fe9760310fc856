/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-Core's torch_dist (megatron/core/dist_checkpointing): keys have no paths.
 *
 *   decoder.layers.REST		[layers, ...]: all layers of a model, if they are alike
 *   optimizer.state.STATE.KEY	the same for each state; fp32_param has the masters
 *   optimizer.REST		other forms, such as buckets of flat elements, are not read
 *   common.pt			iteration, optimizer: {state: {common_step}, param_groups},
 *				without the names of the groups' parameters
 */
#include "ckpt/foreign/dcp_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_metadata.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"

#define OPTIMIZER "optimizer."
#define STATE OPTIMIZER "state."
#define LAYERS "layers."

/* A number, or a tensor with one. */
static int read_common_step(const struct ptfile *pt, struct value *v, struct arena *a, int64_t *out,
			    struct errmsg *err)
{
	const int rc = tensor_is(v) ? ptfile_number(pt, v, "common_step", a, &v, err) : 0;

	if (rc && rc != -ENOTSUP)
		return rc;
	if (!rc && v && v->kind == VALUE_FLOAT)
		*out = v->f >= 0 && v->f < 1e15 ? (int64_t)v->f : 0;
	else
		value_get_int(v, out);
	return 0;
}

static int read_common(struct dcp_megatron *x, struct arena *a, const struct ptfile *pt,
		       struct errmsg *err)
{
	const struct value *optimizer = value_find(pt->root, "optimizer");
	const struct value_dict *group =
		value_pairs(value_item(value_find(optimizer, "param_groups"), 0));

	x->options = value_new(a, VALUE_DICT);
	for (size_t i = 0; group && i < group->n; i++)
		if (value_is_plain(group->v[i].key) && value_is_plain(group->v[i].val))
			value_put(a, x->options, pickle_copy(a, group->v[i].key),
				  pickle_copy(a, group->v[i].val));
	value_get_int(value_find(pt->root, "iteration"), &x->iteration);
	if (!x->options || a->failed)
		return errmsg_nomem(err, pt->src.name);
	return read_common_step(pt, value_find_path(optimizer, "state", "common_step", NULL), a,
				&x->step, err);
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

/* Add an entry with the path of a parameter, or of its state.  The arena notes a failure. */
static void add_entry(struct dcp_metadata *m, struct dcp_entry t, const char *state,
		      const char *name)
{
	const char *path[] = { "optimizer", "state", name, state };
	const char *of_model[] = { "model", name };

	t.depth = state ? COUNT(path) : COUNT(of_model);
	t.path = arena_copy(&m->arena, state ? path : of_model, t.depth * sizeof(*t.path));
	if (t.path && arena_reserve(&m->arena, &m->entries, m->nentries, &m->cap, m->nentries + 1,
				    sizeof(*m->entries)))
		m->entries[m->nentries++] = t;
}

/* Add an entry for each layer of a stack.  The layer's number goes before `rest` in the
 * name.  Chunks are in the order of layers, so that those of a layer are adjacent. */
static int add_layers(struct dcp_metadata *m, const struct dcp_entry *stack, const char *state,
		      const char *name, const char *rest)
{
	struct dcp_chunk *c = stack->chunks, *const end = c + stack->nchunks;
	const size_t room = strlen(name) + 24;

	while (c < end && !c->numel)
		c++;
	for (uint64_t i = 0; c < end; i++) {
		char *full = arena_alloc(&m->arena, room);
		struct dcp_entry t = *stack;

		t.is_layer = true;
		t.ndim--;
		t.shape++;
		t.numel /= stack->shape[0];
		t.chunks = c;
		for (; c < end && c->offset[0] == i; c++) {
			if (c->size[0] != 1)
				return -ENOTSUP;
			c->offset++;
			c->size++;
		}
		t.nchunks = (size_t)(c - t.chunks);
		if (!full)
			return -ENOMEM;
		snprintf(full, room, "%.*s%llu.%s", (int)(rest - name), name, (unsigned long long)i,
			 rest);
		add_entry(m, t, state, full);
	}
	return 0;
}

static int arrange(struct dcp_megatron *x, struct dcp_metadata *m, const struct dcp_entry *t,
		   const char *dir, struct errmsg *err)
{
	const bool is_state = strncmp(t->key, STATE, strlen(STATE)) == 0;
	const char *state = is_state ? t->key + strlen(STATE) : NULL;
	const char *dot = state ? strchr(state, '.') : NULL;
	const char *name = dot ? dot + 1 : t->key;
	const char *rest = t->ndim ? find_stack(name) : NULL;
	const char *field = dot ? arena_strndup(&m->arena, state, (size_t)(dot - state)) : NULL;

	if (!t->is_tensor)
		return 0; /* states of modules that are not tensors */
	if (!dot && strncmp(t->key, OPTIMIZER, strlen(OPTIMIZER)) == 0) {
		x->unread = t->key;
		return 0;
	}
	if (!rest)
		add_entry(m, *t, field, name);
	else if (add_layers(m, t, field, name, rest) == -ENOTSUP)
		return errmsg_set(err, -ENOTSUP, "%s: %s: several layers in one block", dir,
				  t->key);
	return m->arena.failed ? errmsg_nomem(err, dir) : 0;
}

static int arrange_all(struct dcp_megatron *x, struct dcp_metadata *m, const char *dir,
		       struct errmsg *err)
{
	const struct dcp_entry *entries = m->entries;
	const size_t n = m->nentries;
	int rc = 0;

	m->entries = NULL;
	m->nentries = m->cap = 0;
	for (size_t i = 0; !rc && i < n; i++)
		rc = arrange(x, m, &entries[i], dir, err);
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
	rc = io_open(u, path, NULL, &src, err);
	x->found = !beneath_is_missing(rc);
	rc = rc ?: ptfile_open_source(&pt, &src, err);
	if (!rc) {
		rc = read_common(x, &m->arena, &pt, err);
		ptfile_close(&pt);
	}
	if (!rc && dcp_metadata_add_file(m, path) < 0)
		rc = errmsg_nomem(err, dir);
	free(path);
	return !x->found ? 0 : rc ?: arrange_all(x, m, dir, err);
}
