/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-Core's torch_dist (megatron/core/dist_checkpointing): keys have no paths.
 *
 *   decoder.layers.REST		[layers, ...]: all layers of a model, if they are alike
 *   optimizer.state.STATE.KEY	likewise for each state; fp32_param has the masters
 *   optimizer.REST		other forms, such as buckets of flat elements, are not read
 *   common.pt			iteration, optimizer: {state: {common_step}, param_groups},
 *				without the names of the groups' parameters
 */
#include "ckpt/foreign/dcp_model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_metadata.h"
#include "ckpt/foreign/dcp_optimizer.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"

#define OPTIMIZER "optimizer."
#define STATE OPTIMIZER "state."
#define LAYERS "layers."
#define COMMON_RECORD "common_state/"
#define COMMON_MAX (64u << 20)

/* Read a number, or a tensor with one. */
static int read_common_step(const struct ptfile *pt, struct value *v, struct arena *a, int64_t *out,
			    struct errmsg *err)
{
	const int rc = v && tensor_is(v) ? ptfile_number(pt, v, "common_step", a, &v, err) : 0;

	if (rc && rc != -ENOTSUP)
		return rc;
	if (!rc && v && v->kind == VALUE_FLOAT)
		*out = v->f >= 0 && v->f < 1e15 ? (int64_t)v->f : 0;
	else if (v)
		value_get_int(v, out);
	return 0;
}

/* Return the groups of an optimizer; several optimizers may be chained (0, 1, ...). */
static const struct value_seq *find_groups(const struct value *optimizer, size_t chained,
					   const struct value **one)
{
	const struct value *x = value_numbered(optimizer, chained);

	*one = x ?: chained ? NULL : optimizer;
	return value_items(value_find_path(*one, "optimizer", "param_groups", NULL)
				   ?: value_find(*one, "param_groups"));
}

static double number_of(const struct value *v, double otherwise)
{
	return v && v->kind == VALUE_FLOAT ? v->f
	       : v && v->kind == VALUE_INT ? (double)v->i
					   : otherwise;
}

/* Add a group.  Options that scale other options cannot be distinguished. */
static void add_group(struct dcp_megatron *x, struct arena *a, const struct value *group,
		      size_t *cap)
{
	const struct value_dict *d = value_pairs(group);
	struct dcp_megatron_group g = {
		.options = value_new(a, VALUE_DICT),
		.decays = number_of(value_find(group, "wd_mult"), 1) != 0,
		.expert = value_is_true(value_find(group, "is_expert_parallel")),
	};

	for (size_t i = 0; d && i < d->n; i++)
		if (value_is_plain(d->v[i].key) && value_is_plain(d->v[i].val) &&
		    !value_is_str(d->v[i].key, "step"))
			value_put(a, g.options, pickle_copy(a, d->v[i].key),
				  pickle_copy(a, d->v[i].val));
	x->told &= number_of(value_find(group, "lr_mult"), 1) == 1 &&
		   !value_is_true(value_find(group, "is_decoupled_lr"));
	for (size_t i = 0; i < x->ngroups; i++)
		x->told &= x->groups[i].decays != g.decays || x->groups[i].expert != g.expert;
	if (arena_reserve(a, &x->groups, x->ngroups, cap, x->ngroups + 1, sizeof(g)))
		x->groups[x->ngroups++] = g;
}

static int read_common(struct dcp_megatron *x, struct arena *a, const struct ptfile *pt,
		       struct errmsg *err)
{
	const struct value *root = value_item(pt->root, 0) ?: pt->root;
	const struct value *optimizer = value_find(root, "optimizer"), *one;
	const struct value *args = value_find(root, "args");
	const struct value_seq *groups;
	struct value *step = NULL;
	size_t cap = 0;

	x->told = true;
	for (size_t k = 0; (groups = find_groups(optimizer, k, &one)); k++) {
		step = step ?: value_find_path(one, "state", "common_step", NULL);
		for (size_t i = 0; i < groups->n; i++) {
			step = step ?: value_find(groups->v[i], "step");
			add_group(x, a, groups->v[i], &cap);
		}
	}
	if (!x->ngroups)
		add_group(x, a, NULL, &cap);
	value_get_int(value_find(root, "iteration"), &x->iteration);
	x->qk_decays = args && value_is_object(args) &&
		       value_is_true(value_find(args->obj->state, "apply_wd_to_qk_layernorm"));
	return a->failed ? errmsg_nomem(err, pt->src.name)
			 : read_common_step(pt, step, a, &x->step, err);
}

size_t dcp_megatron_group(const struct dcp_megatron *x, const char *name, unsigned ndim)
{
	const char *of_experts = strstr(name, ".experts.experts.");
	/* Unless the names have numbers, all experts of a layer are one tensor. */
	const bool many = of_experts && (of_experts[17] < '0' || of_experts[17] > '9');
	const bool norm = x->qk_decays &&
			  (strstr(name, "q_layernorm.") || strstr(name, "k_layernorm."));
	const bool decays = norm || !(names_ends_with(name, ".bias") || ndim == 1u + many);
	bool apart = false;
	size_t i = 0;

	for (size_t k = 0; k < x->ngroups; k++)
		apart |= x->groups[k].expert;
	while (i < x->ngroups && (x->groups[i].decays != decays ||
				  x->groups[i].expert != (apart && of_experts != NULL)))
		i++;
	return i;
}

/* Return the place in a key where a stack's layer number is missing, or NULL. */
static const char *find_stack(const char *key)
{
	const char *p = strstr(key, LAYERS);

	if (!p || (p > key && p[-1] != '.'))
		return NULL;
	p += strlen(LAYERS);
	return *p < '0' || *p > '9' ? p : NULL;
}

/* Add an entry with the path of a parameter or its state.  The arena records a failure. */
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

/* Add an entry for each layer of a stack.  The layer's number goes before `rest` in the name.
 * Chunks are in the order of layers, so the chunks of a layer are adjacent. */
static int add_layers(struct dcp_metadata *m, const struct dcp_entry *stack, const char *state,
		      const char *name, const char *rest)
{
	struct dcp_chunk *c = stack->chunks, *end = c + stack->nchunks;

	while (c < end && !c->numel)
		c++;
	for (uint64_t i = 0; c < end; i++) {
		const char *full = arena_format(&m->arena, "%.*s%llu.%s", (int)(rest - name), name,
						(unsigned long long)i, rest);
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
		add_entry(m, t, state, full);
	}
	return 0;
}

/* Return the part of a key that begins with "optimizer.", or NULL. */
static const char *find_optimizer(const char *key)
{
	if (strncmp(key, "chained_", 8) == 0) {
		key += 8 + strspn(key + 8, "0123456789");
		key += *key == '.';
	}
	return strncmp(key, OPTIMIZER, strlen(OPTIMIZER)) == 0 ? key : NULL;
}

struct arranging {
	struct dcp_megatron *x;
	struct dcp_metadata *m;
	struct dcp_key *by_key;
	size_t n;
	const char *dir;
	struct errmsg *err;
};

static int arrange(const struct arranging *x, struct dcp_entry t)
{
	const char *own = find_optimizer(t.key);
	const char *state = own && strncmp(own, STATE, strlen(STATE)) == 0 ? own + strlen(STATE) : NULL;
	const char *dot = state ? strchr(state, '.') : NULL;
	const char *name = dot ? dot + 1 : t.key;
	const char *rest = t.ndim ? find_stack(name) : NULL;
	const char *field = dot ? arena_strndup(&x->m->arena, state, (size_t)(dot - state)) : NULL;
	const struct dcp_key *param;
	int rc;

	if (!t.is_tensor)
		return 0; /* states of modules that are not tensors */
	if (own && !dot) {
		x->x->unread = t.key;
		return 0;
	}
	param = field ? array_find(x->by_key, x->n, sizeof(*param), name) : NULL;
	rc = param && param->entry->is_tensor
		     ? dcp_unflatten(x->m, &t, param->entry, x->dir, x->err)
		     : 0;
	if (rc)
		return rc;
	if (field && strcmp(field, "param") == 0)
		field = DCP_MASTER;
	if (!rest)
		add_entry(x->m, t, field, name);
	else if (add_layers(x->m, &t, field, name, rest) == -ENOTSUP)
		return errmsg_set(x->err, -ENOTSUP, "%s: %s: several layers in one block", x->dir,
				  t.key);
	return x->m->arena.failed ? errmsg_nomem(x->err, x->dir) : 0;
}

static int arrange_all(struct dcp_megatron *x, struct dcp_metadata *m, const char *dir,
		       struct errmsg *err)
{
	const struct dcp_entry *entries = m->entries;
	struct arranging a = { x, m, dcp_entries_by_key(m), m->nentries, dir, err };
	int rc = a.by_key ? 0 : errmsg_nomem(err, dir);

	m->entries = NULL;
	m->nentries = m->cap = 0;
	for (size_t i = 0; !rc && i < a.n; i++)
		rc = arrange(&a, entries[i]);
	free(a.by_key);
	return rc;
}

/* Does the metadata have keys of Megatron-Core, although common.pt is missing? */
static bool is_half(const struct dcp_metadata *m)
{
	bool found = false;

	for (size_t i = 0; !found && i < m->nentries; i++)
		found = m->entries[i].depth == 1 &&
			(find_optimizer(m->entries[i].key) || strstr(m->entries[i].key, "/shard_"));
	return found;
}

/* Open the record that replaces the file in later versions; 1 if there is none. */
static int open_record(struct dcp_metadata *m, struct uckpt *u, struct ptfile *pt,
		       struct errmsg *err)
{
	const struct dcp_chunk *c = NULL;
	const char *path;
	struct source src;
	uint8_t *bytes;
	int rc;

	for (size_t i = 0; !c && i < m->nentries; i++)
		if (!m->entries[i].is_tensor && m->entries[i].nchunks &&
		    strncmp(m->entries[i].key, COMMON_RECORD, strlen(COMMON_RECORD)) == 0)
			c = m->entries[i].chunks;
	if (!c)
		return 1;
	path = m->files[c->file];
	if (c->len > COMMON_MAX)
		return errmsg_set(err, -E2BIG, "%s: " COMMON_RECORD ": has %llu bytes", path,
				  (unsigned long long)c->len);
	bytes = arena_alloc(&m->arena, c->len + 1);
	rc = bytes ? io_open(u, path, NULL, &src, err) : errmsg_nomem(err, path);
	if (rc)
		return rc;
	rc = source_read(&src, bytes, c->len, c->at, err);
	source_close(&src);
	source_init_span(&src, path, (struct span){ bytes, c->len });
	return rc ?: ptfile_open_source(pt, &src, err);
}

/* Open common.pt; 1 if it does not exist and is not needed. */
static int open_file(struct dcp_metadata *m, struct uckpt *u, const char *dir, struct ptfile *pt,
		     bool *found, struct errmsg *err)
{
	const char *path = arena_format(&m->arena, "%s/" DCP_MEGATRON_COMMON, dir);
	struct source src;
	int rc;

	*found = true;
	if (!path)
		return errmsg_nomem(err, dir);
	rc = io_open(u, path, NULL, &src, err);
	*found = !beneath_is_missing(rc);
	if (!*found)
		return is_half(m) ? errmsg_set(err, -EBADMSG,
					"%s: is missing, and the tensors are Megatron-Core's", path)
				  : 1;
	if (rc)
		return rc;
	if (dcp_metadata_add_file(m, path) < 0) {
		source_close(&src);
		return errmsg_nomem(err, dir);
	}
	return ptfile_open_source(pt, &src, err);
}

int dcp_megatron_find(struct dcp_megatron *x, struct dcp_metadata *m, struct uckpt *u,
		      const char *dir, struct errmsg *err)
{
	struct ptfile pt;
	int rc;

	*x = (struct dcp_megatron){ 0 };
	rc = open_record(m, u, &pt, err);
	x->found = rc != 1;
	if (rc == 1)
		rc = open_file(m, u, dir, &pt, &x->found, err);
	if (!rc) {
		rc = read_common(x, &m->arena, &pt, err);
		ptfile_close(&pt);
	}
	return rc < 0 ? rc : x->found ? arrange_all(x, m, dir, err) : 0;
}
