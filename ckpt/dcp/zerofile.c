/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint as the files of one rank; zero/shard.c and model/rank_params.c describe
 * what is in them.  A flat group is the group's parameters end to end, which are read
 * from wherever the checkpoint has their parts.
 */
#include "ckpt/dcp/zerofile.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/interval.h"
#include "ckpt/dcp/blobs.h"
#include "ckpt/format/keys.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/pickle/value.h"
#include "ckpt/tensor/cast.h"

static const char *const stems[] = {
	[DCP_ZEROFILE_MODEL] = "mp_rank_00_model_states",
	[DCP_ZEROFILE_OPTIM] = "zero_pp_rank_0_mp_rank_00_optim_states",
};

void dcp_zerofile_name(enum dcp_zerofile_kind kind, char name[DCP_ZEROFILE_NAME_MAX])
{
	snprintf(name, DCP_ZEROFILE_NAME_MAX, "%s.pt", stems[kind]);
}

/* Tensors end to end. */
struct dcp_storage {
	enum dtype type;
	uint64_t numel;
	struct piece {
		uint64_t first; /* its first element */
		struct dcp_item *item; /* NULL: zeros */
	} *pieces;
	size_t npieces;
	const char *key; /* its number, before the file's order is known */
	struct dcp_storage *next;
};

struct zerofile_builder {
	struct arena *a;
	const struct dcp_model *o;
	struct dcp_storage *storages; /* the last one first */
	size_t n;
};

static struct dcp_storage *new_storage(struct zerofile_builder *b, enum dtype type,
				       size_t pieces)
{
	struct dcp_storage *const s = arena_alloc(b->a, sizeof(*s));
	char key[24];

	snprintf(key, sizeof(key), "%zu", b->n);
	if (!s)
		return NULL;
	*s = (struct dcp_storage){
		.type = type,
		.pieces = arena_alloc(b->a, (pieces + 1) * sizeof(*s->pieces)),
		.key = arena_strdup(b->a, key),
		.next = b->storages,
	};
	if (!s->pieces || !s->key)
		return NULL;
	b->storages = s;
	b->n++;
	return s;
}

static void add_piece(struct dcp_storage *s, struct dcp_item *item, uint64_t numel)
{
	if (!numel)
		return;
	s->pieces[s->npieces++] = (struct piece){ s->numel, item };
	s->numel += numel;
}

static struct value *tensor_of(const struct zerofile_builder *b,
			       const struct dcp_storage *s, const uint64_t *shape,
			       unsigned ndim, bool requires_grad)
{
	struct tensor t;

	if (!s)
		return NULL;
	tensor_init(&t, s->type, shape, ndim, requires_grad);
	t.storage_key = s->key;
	return tensor_to_value(b->a, &t);
}

/* A whole item in a storage of its own. */
static struct value *item_value(struct zerofile_builder *b, struct dcp_item *t)
{
	const bool storable = t->dtype <= DTYPE_C128;
	struct dcp_storage *const s =
		new_storage(b, storable ? t->dtype : DTYPE_F32, 1);

	if (s)
		add_piece(s, t, t->numel);
	return tensor_of(b, s, t->shape, t->ndim, false);
}

/* The flat group `g` of a state, or of the weights, end to end. */
static struct value *flat_value(struct zerofile_builder *b,
				const struct dcp_group *g, const size_t *state)
{
	struct dcp_storage *const s = new_storage(b, DTYPE_F32, g->nparams);

	for (size_t i = 0; s && i < g->nparams; i++) {
		const struct dcp_param *const p = &g->params[i];

		add_piece(s, !state     ? p->master
			     : p->states ? p->states[*state]
					 : NULL,
			  p->weight->numel);
	}
	return tensor_of(b, s, s ? &s->numel : NULL, 1, !state);
}

static struct value *size_value(struct arena *a, const struct dcp_item *t)
{
	struct value *const sizes = value_new(a, VALUE_TUPLE);
	struct value *const args = value_new(a, VALUE_TUPLE);

	for (unsigned d = 0; d < t->ndim; d++)
		value_append(a, sizes, value_new_int(a, (int64_t)t->shape[d]));
	value_append(a, args, sizes);
	return value_new_reduce(a, value_new_global(a, "torch", "Size"), args);
}

static struct value *config(struct arena *a)
{
	struct value *const out = value_new(a, VALUE_DICT);
	struct value *const zero = value_new(a, VALUE_DICT);

	value_dict_set(a, zero, "stage", value_new_int(a, 1));
	value_dict_set(a, out, "zero_optimization", zero);
	return out;
}

/* All tensors of the model.  Those of types that torch's storages do not name are widened,
 * or left out. */
static struct value *module_value(struct zerofile_builder *b)
{
	const struct dcp_model *const o = b->o;
	struct value *const out = value_new_ordered(b->a);

	for (size_t g = 0; g < o->ngroups; g++)
		for (size_t i = 0; i < o->groups[g].nparams; i++)
			value_dict_set(b->a, out, o->groups[g].params[i].name,
				       item_value(b, o->groups[g].params[i].weight));
	for (size_t i = 0; i < o->nextras; i++) {
		struct dcp_item *const t = o->extras[i].item;

		if (t->dtype <= DTYPE_C128 || cast_knows(t->dtype))
			value_dict_set(b->a, out, o->extras[i].name,
				       item_value(b, t));
	}
	return out;
}

static struct value *shapes_value(const struct zerofile_builder *b)
{
	struct value *const list = value_new(b->a, VALUE_LIST);

	for (size_t g = 0; g < b->o->ngroups; g++) {
		const struct dcp_group *const group = &b->o->groups[g];
		struct value *const shapes = value_new_ordered(b->a);

		for (size_t i = 0; i < group->nparams; i++)
			value_dict_set(b->a, shapes, group->params[i].name,
				       size_value(b->a, group->params[i].weight));
		value_append(b->a, list, shapes);
	}
	return list;
}

static struct value *ties_value(const struct zerofile_builder *b)
{
	struct value *const out = value_new(b->a, VALUE_DICT);

	for (size_t i = 0; i < b->o->nextras; i++)
		if (b->o->extras[i].same)
			value_dict_set(b->a, out, b->o->extras[i].name,
				       value_new_str(b->a,
						     b->o->extras[i].same->name));
	return out;
}

static struct value *warnings_value(const struct zerofile_builder *b)
{
	const struct dcp_model *const o = b->o;
	const bool half = o->weights == DTYPE_BF16 || o->weights == DTYPE_F16;
	struct value *const list = value_new(b->a, VALUE_LIST);

	if (!o->has_optimizer)
		value_append(b->a, list,
			     value_new_str(b->a, "there is no optimizer: its states"
						 " are zeros"));
	else if (half)
		value_append(b->a, list,
			     value_new_str(b->a, "there are no fp32 master weights:"
						 " parameters of 16 bits are"
						 " widened"));
	if (o->steps_differ)
		value_append(b->a, list,
			     value_new_str(b->a, "parameters of one group have made"
						 " different numbers of steps: all"
						 " get that of the first"));
	return list;
}

static struct value *model_root(struct zerofile_builder *b, const char *source)
{
	static const char *const absent[] = {
		"optimizer",    "frozen_param_shapes", "frozen_param_fragments",
		"lr_scheduler", "data_sampler",        "random_ltd",
	};
	static const struct {
		const char *key;
		int n;
	} numbers[] = {
		{ "skipped_steps", 0 }, { "global_samples", 0 },
		{ "dp_world_size", 1 }, { "mp_world_size", 1 },
	};
	struct arena *const a = b->a;
	struct value *const root = value_new(a, VALUE_DICT);

	value_dict_set(a, root, "module", module_value(b));
	value_dict_set(a, root, "buffer_names", value_new(a, VALUE_LIST));
	value_dict_set(a, root, "param_shapes", shapes_value(b));
	value_dict_set(a, root, KEY_SHARED_PARAMS, ties_value(b));
	for (size_t i = 0; i < COUNT(absent); i++)
		value_dict_set(a, root, absent[i], value_new(a, VALUE_NONE));
	for (size_t i = 0; i < COUNT(numbers); i++)
		value_dict_set(a, root, numbers[i].key,
			       value_new_int(a, numbers[i].n));
	value_dict_set(a, root, "global_steps", value_new_int(a, b->o->step));
	value_dict_set(a, root, KEY_FOREIGN_SOURCE, value_new_str(a, source));
	value_dict_set(a, root, KEY_FOREIGN_WARNINGS, warnings_value(b));
	return root;
}

static struct value *states_value(struct zerofile_builder *b,
				  const struct dcp_group *g)
{
	struct value *const out = value_new(b->a, VALUE_DICT);

	for (size_t i = 0; i < g->nstates; i++) {
		const struct dcp_state *const s = &g->states[i];

		value_dict_set(b->a, out, s->name,
			       s->flat    ? flat_value(b, g, &i)
			       : s->item ? item_value(b, s->item)
					  : s->number);
	}
	return out;
}

/* A group's options, with the number of the flat group for its parameters. */
static struct value *options_value(struct arena *a, const struct dcp_group *g,
				   size_t number)
{
	const struct value_dict *const d = value_pairs(g->options);
	struct value *const out = value_new(a, VALUE_DICT);
	struct value *const params = value_new(a, VALUE_LIST);

	for (size_t i = 0; d && i < d->n; i++)
		value_put(a, out, d->v[i].key, d->v[i].val);
	value_append(a, params, value_new_int(a, (int64_t)number));
	value_dict_set(a, out, "params", params);
	return out;
}

/* Where each parameter lies in its flat group. */
static struct value *mapping_value(struct arena *a, const struct dcp_group *g)
{
	struct value *const out = value_new_ordered(a);
	uint64_t start = 0;

	for (size_t i = 0; i < g->nparams; i++) {
		const uint64_t numel = g->params[i].weight->numel;
		struct value *const place = value_new(a, VALUE_DICT);

		if (!numel)
			continue;
		value_dict_set(a, place, "numel", value_new_int(a, (int64_t)numel));
		value_dict_set(a, place, "start", value_new_int(a, (int64_t)start));
		value_dict_set(a, out, g->params[i].name,
			       value_new_object(a,
						value_new_global(
							a,
							"deepspeed.utils.tensor_fragment",
							"fragment_address"),
						place));
		start += numel;
	}
	return out;
}

static struct value *optim_root(struct zerofile_builder *b)
{
	struct arena *const a = b->a;
	struct value *const root = value_new(a, VALUE_DICT);
	struct value *const dict = value_new(a, VALUE_DICT);
	struct value *const base = value_new(a, VALUE_DICT);
	struct value *const state = value_new(a, VALUE_DICT);
	struct value *const groups = value_new(a, VALUE_LIST);
	struct value *const masters = value_new(a, VALUE_LIST);
	struct value *const counts = value_new(a, VALUE_LIST);
	struct value *const paddings = value_new(a, VALUE_LIST);
	struct value *const maps = value_new(a, VALUE_LIST);

	for (size_t g = 0; g < b->o->ngroups; g++) {
		const struct dcp_group *const group = &b->o->groups[g];

		value_put(a, state, value_new_int(a, (int64_t)g),
			  states_value(b, group));
		value_append(a, groups, options_value(a, group, g));
		value_append(a, masters, flat_value(b, group, NULL));
		value_append(a, counts, value_new_int(a, 1));
		value_append(a, paddings, value_new_int(a, 0));
		value_append(a, maps, mapping_value(a, group));
	}
	value_dict_set(a, base, "state", state);
	value_dict_set(a, base, KEY_PARAM_GROUPS, groups);
	value_dict_set(a, dict, KEY_BASE_OPTIMIZER_STATE, base);
	value_dict_set(a, dict, KEY_FP32_GROUPS, masters);
	value_dict_set(a, dict, KEY_ZERO_STAGE, value_new_int(a, 1));
	value_dict_set(a, dict, KEY_GROUP_PADDINGS, paddings);
	value_dict_set(a, dict, KEY_PARTITION_COUNT, counts);
	value_dict_set(a, dict, KEY_DS_VERSION, value_new_str(a, NAMES_DS_VERSION));
	value_dict_set(a, dict, KEY_PARAM_SLICE_MAPPINGS, maps);
	value_dict_set(a, root, KEY_OPTIMIZER_STATE_DICT, dict);
	return root;
}

/* Put the storages into the order of the pickle. */
static int lay_out(struct dcp_zerofile *x, const struct zerofile_builder *b,
		   struct bytebuf *pickle, const struct pickle_storages *order,
		   const char *name, struct errmsg *err)
{
	struct dcp_storage **const v = arena_alloc(&x->arena,
						   (b->n + 1) * sizeof(*v));
	uint64_t *const len = arena_alloc(&x->arena, (b->n + 1) * sizeof(*len));
	size_t i = b->n;

	x->storages = arena_alloc(&x->arena, (b->n + 1) * sizeof(*x->storages));
	if (!v || !len || !x->storages)
		return errmsg_nomem(err, name);
	for (struct dcp_storage *s = b->storages; s; s = s->next)
		v[--i] = s;
	x->n = order->n;
	for (i = 0; i < x->n; i++) {
		x->storages[i] = *v[strtoul(order->pid[i]->pid->seq.v[2]->str.p,
					    NULL, 10)];
		len[i] = x->storages[i].numel * dtype_size(x->storages[i].type);
	}
	return ptwrite_init(&x->w, name, pickle, len, x->n, err);
}

int dcp_zerofile_init(struct dcp_zerofile *x, enum dcp_zerofile_kind kind,
		      const struct dcp_model *o, const char *source,
		      struct errmsg *err)
{
	struct zerofile_builder b = { .a = &x->arena, .o = o };
	struct pickle_storages order = { 0 };
	struct bytebuf pickle = { 0 };
	struct value *root;
	int rc;

	*x = (struct dcp_zerofile){ 0 };
	root = kind == DCP_ZEROFILE_MODEL ? model_root(&b, source) : optim_root(&b);
	value_dict_set(b.a, root, KEY_DS_CONFIG, config(b.a));
	value_dict_set(b.a, root, KEY_DS_VERSION,
		       value_new_str(b.a, NAMES_DS_VERSION));
	rc = b.a->failed ? errmsg_nomem(err, stems[kind])
			 : pickle_dump(root, &pickle, &order, err);
	rc = rc ?: lay_out(x, &b, &pickle, &order, stems[kind], err);
	bytebuf_done(&pickle);
	pickle_storages_done(&order);
	if (rc)
		dcp_zerofile_done(x);
	return rc;
}

void dcp_zerofile_done(struct dcp_zerofile *x)
{
	ptwrite_done(&x->w);
	arena_done(&x->arena);
	*x = (struct dcp_zerofile){ 0 };
}

/* Read elements [first, first + n) of a storage. */
static int read_elements(const struct dcp_storage *s, struct dcp_blobs *b,
			 uint8_t *buf, uint64_t first, uint64_t n,
			 struct errmsg *err)
{
	size_t i = interval_find(&s->pieces->first, s->npieces,
				 sizeof(*s->pieces), first);
	int rc = 0;

	for (uint64_t len; !rc && n; i++, first += len, n -= len) {
		const struct piece *const p = &s->pieces[i];
		const uint64_t end = i + 1 < s->npieces ? p[1].first : s->numel;

		len = end - first < n ? end - first : n;
		if (p->item)
			rc = dcp_blobs_read(b, p->item, s->type, buf,
					    first - p->first, len, err);
		else
			memset(buf, 0, len * dtype_size(s->type));
		buf += len * dtype_size(s->type);
	}
	return rc;
}

/* Read bytes of a storage, from wherever in an element on. */
static int read_storage(const struct dcp_storage *s, struct dcp_blobs *b,
			uint8_t *buf, size_t len, uint64_t off, struct errmsg *err)
{
	const size_t item = dtype_size(s->type);
	uint8_t one[16];
	int rc = 0;

	for (size_t n; !rc && len; buf += n, off += n, len -= n) {
		const size_t skip = off % item;

		if (!skip && len >= item) {
			n = len - len % item;
			rc = read_elements(s, b, buf, off / item, n / item, err);
			continue;
		}
		n = item - skip < len ? item - skip : len;
		rc = read_elements(s, b, one, off / item, 1, err);
		if (!rc)
			memcpy(buf, one + skip, n);
	}
	return rc;
}

/* Read bytes of literal `i`, from `off` in it on. */
static int read_literal(const struct ptwrite *w, size_t i, uint8_t *buf, size_t len,
			uint64_t off, struct errmsg *err)
{
	struct bytebuf b = { 0 };
	const int rc = ptwrite_literal(w, i, NULL, &b, err);

	if (!rc)
		memcpy(buf, b.data + off, len);
	bytebuf_done(&b);
	return rc;
}

/* The number of storages that end at `off` or before. */
static size_t storages_before(const struct ptwrite *w, uint64_t off)
{
	size_t low = 0, high = w->n;

	while (low < high) {
		const size_t mid = low + (high - low) / 2;

		if (w->offset[mid] + w->len[mid] <= off)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

int dcp_zerofile_read(const struct dcp_zerofile *x, struct dcp_blobs *b, void *buf,
		      size_t len, uint64_t off, struct errmsg *err)
{
	const struct ptwrite *const w = &x->w;
	uint8_t *to = buf;
	int rc = 0;

	for (size_t n; !rc && len; off += n, to += n, len -= n) {
		const size_t i = storages_before(w, off);
		const uint64_t literal = ptwrite_literal_offset(w, i);
		const uint64_t data = literal + ptwrite_literal_len(w, i);
		const uint64_t end = off < data ? data : data + w->len[i];

		n = end - off < len ? (size_t)(end - off) : len;
		rc = off < data ? read_literal(w, i, to, n, off - literal, err)
				: read_storage(&x->storages[i], b, to, n,
					       off - data, err);
	}
	return rc;
}
