/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Make checkpoint directories for tests.  Parameters are laid out and partitioned element by
 * element into real buffers, without code of ckpt/table/partition.c, whose results are compared
 * with these.
 */
#include "tests/make/mkckpt.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/make/mkckpt_impl.h"

#define NONE SIZE_MAX
#define PADDING_BITS 0x7fdead77u /* a NaN that marks padding */

const char *const mkckpt_state_names[MKCKPT_STATES] = { "fp32", "exp_avg", "exp_avg_sq" };

void mkckpt_die(const char *what)
{
	perror(what);
	abort();
}

void *mkckpt_must(void *p)
{
	if (!p)
		mkckpt_die("out of memory");
	return p;
}

uint64_t mkckpt_numel(const uint64_t *shape, unsigned ndim)
{
	uint64_t n = 1;

	for (unsigned i = 0; i < ndim; i++)
		n *= shape[i];
	return n;
}

static uint64_t param_numel(const struct mkckpt_param *p)
{
	return mkckpt_numel(p->shape, p->ndim);
}

uint32_t mkckpt_element(const struct mkckpt *c, size_t param, unsigned state, uint64_t i)
{
	uint64_t h = c->seed + param * MKCKPT_STATES + state;

	if (c->view)
		return mkckpt_view_element(c->view, param, state, i);
	if (c->element)
		return c->element(c, param, state, i);
	h = (h * UINT64_C(0x9e3779b97f4a7c15)) + i;
	h = (h ^ h >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
	return (uint32_t)(h >> 32);
}

/* A flat group of stages 1 and 2: the parameter's element at each position. */
struct flat_group {
	size_t *params; /* numbers of the parameters, in flat order */
	uint64_t *pad;  /* padding elements after each parameter */
	size_t n;
	size_t *owner;   /* parameter of each element, or NONE */
	uint64_t *index; /* index of each element in its parameter */
	uint64_t used, len, part;
};

size_t *mkckpt_order(const struct mkckpt *c, size_t g, bool round_robin, size_t *n)
{
	const unsigned buckets = round_robin ? c->ranks : 1;

	size_t *order = mkckpt_must(calloc(c->nparams + 1, sizeof(*order)));

	*n = 0;
	for (unsigned b = 0; b < buckets; b++) {
		unsigned k = 0;

		for (size_t i = 0; i < c->nparams; i++)
			if (c->params[i].group == g && k++ % buckets == b)
				order[(*n)++] = i;
	}
	return order;
}

static void put(struct flat_group *f, size_t owner, uint64_t index)
{
	const size_t n = f->len + 1;

	if ((n & (n - 1)) == 0 || n == 1) {
		f->owner = mkckpt_must(realloc(f->owner, 2 * n * sizeof(*f->owner)));
		f->index = mkckpt_must(realloc(f->index, 2 * n * sizeof(*f->index)));
	}
	f->owner[f->len] = owner;
	f->index[f->len++] = index;
}

static struct flat_group flatten(const struct mkckpt *c, size_t g, bool round_robin)
{
	struct flat_group f = { 0 };

	f.params = mkckpt_order(c, g, round_robin, &f.n);
	f.pad = mkckpt_must(calloc(f.n + 1, sizeof(*f.pad)));
	for (size_t i = 0; i < f.n; i++) {
		const uint64_t n = param_numel(&c->params[f.params[i]]);

		for (uint64_t k = 0; k < n; k++)
			put(&f, f.params[i], k);
		f.used = f.len;
		while (i + 1 < f.n && c->align && f.len % c->align) {
			put(&f, NONE, 0);
			f.pad[i]++;
		}
	}
	while (f.len % (2 * c->ranks))
		put(&f, NONE, 0);
	f.part = f.len / c->ranks;
	return f;
}

static void flat_done(struct flat_group *f)
{
	free(f->params);
	free(f->pad);
	free(f->owner);
	free(f->index);
}

/* Return the elements of a rank's partition. */
static uint32_t *flat_elements(const struct mkckpt *c, const struct flat_group *f, unsigned rank,
			       unsigned state)
{
	uint32_t *v = mkckpt_must(calloc(f->part + 1, sizeof(*v)));

	for (uint64_t i = 0; i < f->part; i++) {
		const uint64_t at = rank * f->part + i;

		v[i] = f->owner[at] == NONE ? PADDING_BITS
					    : mkckpt_element(c, f->owner[at], state, f->index[at]);
	}
	return v;
}

/* Return the number of padding elements at the end of a rank's partition. */
static uint64_t tail_padding(const struct flat_group *f, unsigned rank)
{
	uint64_t n = 0;

	while (n < f->part && rank * f->part + f->part - n > f->used)
		n++;
	return n;
}

/* Return {name: fragment_address} of the fragments that a rank holds. */
static struct value *slice_mapping(struct mkpt *m, const struct mkckpt *c,
				   const struct flat_group *f, unsigned rank)
{
	struct value *dict = mkpt_ordered_dict(m);
	uint64_t *start = mkckpt_must(calloc(c->nparams + 1, sizeof(*start)));
	uint64_t *numel = mkckpt_must(calloc(c->nparams + 1, sizeof(*numel)));

	for (uint64_t k = f->part; k-- > 0;) {
		const size_t owner = f->owner[rank * f->part + k];

		if (owner != NONE) {
			start[owner] = k;
			numel[owner]++;
		}
	}
	for (size_t i = 0; i < f->n; i++) {
		const size_t param = f->params[i];
		struct value *state;

		if (!numel[param])
			continue;
		state = mkpt_dict(m);
		mkpt_set(m, state, "numel", mkpt_int(m, (int64_t)numel[param]));
		mkpt_set(m, state, "start", mkpt_int(m, (int64_t)start[param]));
		mkpt_set_new(m, dict, c->params[param].name,
			     mkpt_object(m, "deepspeed.utils.tensor_fragment", "fragment_address",
					 state));
	}
	free(start);
	free(numel);
	return dict;
}

static struct value *stage_value(struct mkpt *m, int stage)
{
	return mkpt_reduce(m, mkpt_global(m, "deepspeed.runtime.zero.config", "ZeroStageEnum"),
			   mkpt_tuple(m, 1, mkpt_int(m, stage)));
}

static struct value *loss_scaler(struct mkpt *m)
{
	struct value *state = mkpt_dict(m);

	mkpt_set(m, state, "cur_scale", mkpt_float(m, 1.0));
	mkpt_set(m, state, "dynamic", mkpt_bool(m, false));
	return mkpt_object(m, "deepspeed.runtime.fp16.loss_scaler", "LossScaler", state);
}

static struct value *param_groups(struct mkpt *m, const struct mkckpt *c)
{
	struct value *list = mkpt_list(m);

	for (size_t g = 0; g < c->ngroups; g++) {
		struct value *d = mkpt_dict(m);
		struct value *ids = mkpt_list(m);

		mkpt_add(m, ids, mkpt_int(m, (int64_t)g));
		mkckpt_mark_group(m, c, g, d);
		mkpt_set(m, d, "lr", mkpt_float(m, 0.01));
		mkpt_set(m, d, "betas", mkpt_tuple(m, 2, mkpt_float(m, 0.9), mkpt_float(m, 0.999)));
		mkpt_set(m, d, "params", ids);
		mkpt_add(m, list, d);
	}
	return list;
}

static struct value *group_state(struct mkpt *m, uint32_t *const *v, uint64_t numel)
{
	struct value *d = mkpt_dict(m);
	const float step = 4;

	mkpt_set(m, d, "step", mkpt_tensor(m, DTYPE_F32, NULL, 0, &step));
	for (unsigned s = 1; s < MKCKPT_STATES; s++)
		mkpt_set(m, d, mkckpt_state_names[s],
			 mkpt_flat(m, DTYPE_F32, numel, numel, false, v[s]));
	return d;
}

static struct value *optimizer_dict(struct mkpt *m, const struct mkckpt *c, struct value *state)
{
	struct value *d = mkpt_dict(m);

	mkpt_set(m, d, "state", state);
	mkpt_set(m, d, "param_groups", param_groups(m, c));
	return d;
}

static struct value *make_zero12(struct mkpt *m, const struct mkckpt *c, unsigned rank)
{
	struct value *d = mkpt_dict(m), *state = mkpt_dict(m);
	struct value *fp32 = mkpt_list(m), *pad = mkpt_list(m);
	struct value *align = mkpt_list(m), *count = mkpt_list(m);
	struct value *maps = mkpt_list(m);

	for (size_t g = 0; g < c->ngroups; g++) {
		struct mkckpt_view view;
		const struct mkckpt *own = mkckpt_view(&view, m, c, g, rank);
		struct flat_group f = flatten(own, g, c->round_robin);
		struct flat_group natural = flatten(own, g, false);
		const uint64_t tail = tail_padding(&f, view.part);
		struct value *pads = mkpt_list(m);
		uint32_t *v[MKCKPT_STATES];

		for (unsigned s = 0; s < MKCKPT_STATES; s++)
			v[s] = flat_elements(own, &f, view.part, s);
		mkpt_set_key(m, state, mkpt_int(m, (int64_t)g), group_state(m, v, f.part));
		mkpt_add(m, fp32,
			 mkpt_flat(m, DTYPE_F32, f.part - (c->padded ? 0 : tail), f.part, true,
				   v[0]));
		mkpt_add(m, pad, mkpt_int(m, (int64_t)tail));
		for (size_t i = 0; i < f.n; i++)
			mkpt_add(m, pads, mkpt_int(m, (int64_t)f.pad[i]));
		mkpt_add(m, align, pads);
		mkpt_add(m, count, mkpt_int(m, own->ranks));
		mkpt_add(m, maps, slice_mapping(m, own, c->align ? &f : &natural, view.part));
		for (unsigned s = 0; s < MKCKPT_STATES; s++)
			free(v[s]);
		flat_done(&f);
		flat_done(&natural);
	}
	mkpt_set(m, d, "loss_scaler", loss_scaler(m));
	mkpt_set(m, d, "overflow", mkpt_bool(m, false));
	mkpt_set(m, d, "base_optimizer_state", optimizer_dict(m, c, state));
	mkpt_set(m, d, "single_partition_of_fp32_groups", fp32);
	mkpt_set(m, d, "zero_stage", stage_value(m, c->stage));
	mkpt_set(m, d, "group_paddings", pad);
	mkpt_set(m, d, "param_alignment_paddings", align);
	mkpt_set(m, d, "partition_count", count);
	mkpt_set(m, d, "ds_version", mkpt_str(m, MKCKPT_DS_VERSION));
	mkpt_set(m, d, "param_slice_mappings", maps);
	return d;
}

/* Return a rank's slots of a sub-group, one parameter after another. */
static uint32_t *slots(const struct mkckpt *c, size_t g, unsigned rank, unsigned state,
		       uint64_t *len)
{
	uint32_t *v = mkckpt_must(calloc(1, sizeof(*v)));

	*len = 0;
	for (size_t i = 0; i < c->nparams; i++) {
		const uint64_t n = param_numel(&c->params[i]);
		const uint64_t q = (n + c->ranks - 1) / c->ranks;

		if (c->params[i].group != g)
			continue;
		v = mkckpt_must(realloc(v, (*len + q + 1) * sizeof(*v)));
		for (uint64_t k = rank * q; k < (rank + 1) * q; k++)
			v[(*len)++] = k < n ? mkckpt_element(c, i, state, k) : PADDING_BITS;
	}
	return v;
}

static struct value *make_zero3(struct mkpt *m, const struct mkckpt *c, unsigned rank)
{
	struct value *d = mkpt_dict(m), *state = mkpt_dict(m);
	struct value *fp32 = mkpt_list(m);

	for (size_t g = 0; g < c->ngroups; g++) {
		struct mkckpt_view view;
		const struct mkckpt *own = mkckpt_view(&view, m, c, g, rank);
		uint32_t *v[MKCKPT_STATES];
		uint64_t len = 0;

		for (unsigned s = 0; s < MKCKPT_STATES; s++)
			v[s] = slots(own, g, view.part, s, &len);
		mkpt_set_key(m, state, mkpt_int(m, (int64_t)g), group_state(m, v, len));
		mkpt_add(m, fp32,
			 mkpt_attribute(m, mkpt_flat(m, DTYPE_F32, len, len, true, v[0]), "ds_id",
					mkpt_str(m, "0_0")));
		for (unsigned s = 0; s < MKCKPT_STATES; s++)
			free(v[s]);
	}
	mkpt_set(m, d, "zero_stage", stage_value(m, 3));
	mkpt_set(m, d, "loss_scaler", loss_scaler(m));
	mkpt_set(m, d, "overflow", mkpt_bool(m, false));
	mkpt_set(m, d, "partition_count", mkpt_int(m, c->ranks));
	if (c->nlayers)
		mkpt_set(m, d, "ds_zero_partition_groups", mkckpt_partition_groups(m, c, rank));
	mkpt_set(m, d, "optimizer_state_dict", optimizer_dict(m, c, state));
	mkpt_set(m, d, "fp32_flat_groups", fp32);
	return d;
}

static struct value *make_optim(struct mkpt *m, const struct mkckpt *c, unsigned rank)
{
	struct value *root = mkpt_dict(m);

	mkpt_set(m, root, "optimizer_state_dict",
		 c->stage == 3 ? make_zero3(m, c, rank) : make_zero12(m, c, rank));
	mkpt_set(m, root, "ds_config", mkckpt_config(m, c));
	mkpt_set(m, root, "ds_version", mkpt_str(m, MKCKPT_DS_VERSION));
	return root;
}

void mkckpt_path(const struct mkckpt *c, const char *dir, enum mkckpt_file kind, unsigned rank,
		 char *out)
{
	const char *bf16 = c->bf16 ? "bf16_" : "";

	if (kind == MKCKPT_EXPERT)
		mkckpt_expert_path(c, dir, rank, out);
	else if (kind == MKCKPT_OPTIM)
		snprintf(out, PATH_MAX, "%s/%szero_pp_rank_%u_mp_rank_%02u_optim_states.pt", dir,
			 bf16, rank, c->mp);
	else if (c->stage == 3)
		snprintf(out, PATH_MAX, "%s/zero_pp_rank_%u_mp_rank_%02u_model_states.pt", dir,
			 rank, c->mp);
	else
		snprintf(out, PATH_MAX, "%s/mp_rank_%02u_model_states.pt", dir, c->mp);
}

static void write_one(const struct mkckpt *c, const char *dir, enum mkckpt_file kind, unsigned rank)
{
	struct mkpt m = { 0 };
	struct value *root = kind == MKCKPT_MODEL    ? mkckpt_model(&m, c, rank)
			     : kind == MKCKPT_EXPERT ? mkckpt_expert(&m, c, rank)
						     : make_optim(&m, c, rank);
	struct bytebuf file = { 0 };
	char path[PATH_MAX];

	if (c->edit)
		c->edit(&m, root, kind, rank, c->ctx);
	mkpt_emit(&m, root, "archive", &file);
	mkckpt_path(c, dir, kind, rank, path);
	mkpt_save(path, file.data, file.len);
	bytebuf_done(&file);
	mkpt_done(&m);
}

void mkckpt_write(const struct mkckpt *c, const char *dir)
{
	for (unsigned r = 0; r < c->ranks; r++) {
		write_one(c, dir, MKCKPT_OPTIM, r);
		if (r == 0 || c->stage == 3)
			write_one(c, dir, MKCKPT_MODEL, r);
	}
	for (unsigned i = 0; c->stage < 3 && i < mkckpt_nexperts(c); i++)
		write_one(c, dir, MKCKPT_EXPERT, i);
}

static const struct mkckpt_param small_params[] = {
	{ "emb.weight", 2, { 11, 7 }, 0 },
	{ "bias", 1, { 5 }, 0 },
	{ "scalar", 0, { 0 }, 1 },
};

static const struct mkckpt_extra small_extras[] = {
	{ .name = "buffer", .dtype = DTYPE_I64, .ndim = 1, .shape = { 3 } },
	{ .name = "frozen", .dtype = DTYPE_F32, .ndim = 2, .shape = { 2, 2 } },
};

struct mkckpt mkckpt_small(int stage)
{
	return (struct mkckpt){
		.stage = stage,
		.ranks = 2,
		.params = small_params,
		.nparams = sizeof(small_params) / sizeof(*small_params),
		.ngroups = 2,
		.extras = small_extras,
		.nextras = stage < 3 ? sizeof(small_extras) / sizeof(*small_extras) : 0,
		.seed = 7,
	};
}
