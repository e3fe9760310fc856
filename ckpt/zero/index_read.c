/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index, read back.  It may come from anywhere, so it gets no further than
 * a shard would: what it says is put through the checks of rank_params.c,
 * experts.c and shard.c where these are, and through the same ones here where
 * they are tied to pickles.  What is wrong is told in one line; the caller then
 * reads the files themselves.
 */
#include "ckpt/zero/index.h"

#include <errno.h>
#include <string.h>

#include "ckpt/tensor/cast.h"
#include "ckpt/model/rank_params_build.h"
#include "ckpt/base/checked.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/zero/index_impl.h"
#include "ckpt/zero/index_input.h"
#include "ckpt/model/merge_rules.h"
#include "ckpt/pickle/pickle.h"

/* --- the files ------------------------------------------------------------------- */

static bool are_files(struct input *in, const struct ckdir *d)
{
	for (size_t i = 0; i < ckdir_count(d); i++) {
		struct fileid id;

		id.dev = input_u64(in);
		id.ino = input_u64(in);
		id.size = input_u64(in);
		id.mtime_ns = (int64_t)input_u64(in);
		if (in->ended || !fileid_equal(&id, &ckdir_file(d, i)->file))
			return false;
	}
	return true;
}

static int read_identity(struct input *in)
{
	static const char version[] = INDEX_VERSION " " PACKAGE_VERSION;
	const struct ckdir *const d = in->f->dir;
	const struct span text = input_text(in);

	if (text.len != sizeof(version) - 1 ||
	    memcmp(text.p, version, text.len) != 0)
		return errmsg_set(in->err, -ESTALE,
				  "is of another version of ucfs");
	if (input_u32(in) == d->mp_degree && input_u32(in) == d->dp_degree &&
	    input_bool(in) == d->zero3 && input_u32(in) == d->nmodel &&
	    input_u32(in) == d->nexpert && input_u32(in) == d->nswapped &&
	    are_files(in, d))
		return 0;
	return errmsg_set(in->err, -ESTALE, "is of other files: %s has changed",
			  d->path);
}

/* --- facts ------------------------------------------------------------------------ */

static int read_facts(struct input *in, struct catalogue *c)
{
	size_t n;

	c->round_robin = input_bool(in);
	c->stage = (int64_t)input_u64(in);
	c->global_steps = (int64_t)input_u64(in);
	c->dp_world_size = (int64_t)input_u64(in);
	c->mp_world_size = (int64_t)input_u64(in);
	c->tp_degree = (int64_t)input_u64(in);
	c->pp_degree = (int64_t)input_u64(in);
	c->module_dtype = (enum dtype)input_u8(in);
	c->ds_version = input_name(in, &c->arena);
	n = input_count(in, 4);
	if (in->ended || c->module_dtype > DTYPE_OTHER || !c->ds_version)
		return input_damaged(in, "facts of a rank");
	c->warnings = arena_alloc(&c->arena, (n + 1) * sizeof(*c->warnings));
	if (!c->warnings)
		return input_nomem(in);
	while (c->nwarnings < n) {
		const char *const text = input_name(in, &c->arena);

		if (!text)
			return input_damaged(in, "warnings");
		c->warnings[c->nwarnings++] = text;
	}
	return 0;
}

static int read_rules(struct input *in, struct catalogue *c)
{
	const struct span pickle = input_text(in);
	struct arena a = { 0 };
	struct value *info = NULL;
	int rc = 0;

	if (pickle.len)
		rc = pickle_load(pickle, "universal_checkpoint_info", &a, &info,
				 in->err);
	if (!rc)
		rc = merge_rules_new(info, "the index", &c->rules, in->err);
	c->has_uc_info = value_pairs(info) != NULL;
	arena_done(&a);
	return rc;
}

/* --- experts ---------------------------------------------------------------------- */

/* Every expert has a place, and every place one expert. */
static int read_places(struct input *in, struct arena *a, struct expert_layer *l)
{
	struct expert_place *const places =
		arena_alloc(a, l->n * sizeof(*places));
	bool *const taken = arena_alloc(a, l->n);

	if (!places || !taken)
		return input_nomem(in);
	for (unsigned e = 0; e < l->n; e++) {
		struct expert_place *const p = &places[e];

		p->rank = input_u32(in);
		p->index = input_u32(in);
		if (p->index >= l->local || p->rank >= l->n / l->local ||
		    taken[p->rank * l->local + p->index])
			return input_damaged(in, "places of experts");
		taken[p->rank * l->local + p->index] = true;
	}
	l->places = places;
	return 0;
}

static int read_layer(struct input *in, struct arena *a, struct expert_layer *l,
		      unsigned *total)
{
	l->prefix = input_name(in, a);
	l->fused = input_bool(in);
	l->n = input_u32(in);
	if (in->ended || !l->prefix || !*l->prefix ||
	    strlen(l->prefix) > EXPERT_NAME_MAX - 16 || l->n < 1 ||
	    l->n > EXPERTS_MAX - *total)
		return input_damaged(in, "a MoE layer");
	*total += l->n;
	if (!l->fused)
		return experts_is_native(l->prefix)
			       ? 0
			       : input_damaged(in, "a MoE layer's name");
	l->local = input_u32(in);
	l->ep = (int64_t)input_u64(in);
	if (in->ended || l->local < 1 || l->n % l->local ||
	    l->n > in->rest.len / 8)
		return input_damaged(in, "a MoE layer's experts");
	return read_places(in, a, l);
}

static int read_experts(struct input *in, struct catalogue *c)
{
	struct experts *const x = &c->experts;
	unsigned total = 0;
	size_t n;
	int rc = 0;

	x->data_first = input_bool(in);
	n = input_count(in, 9);
	if (in->ended || n > EXPERTS_LAYERS_MAX)
		return input_damaged(in, "MoE layers");
	x->layers = arena_alloc(&c->arena, (n + 1) * sizeof(*x->layers));
	if (!x->layers)
		return input_nomem(in);
	for (x->n = n; !rc && n; n--)
		rc = read_layer(in, &c->arena, &x->layers[x->n - n], &total);
	return rc;
}

/* --- slices ----------------------------------------------------------------------- */

static uint64_t *get_dims(struct input *in, struct arena *a, unsigned n)
{
	uint64_t *const v = arena_alloc(a, n * sizeof(*v) + 1);

	for (unsigned i = 0; v && i < n; i++)
		v[i] = input_u64(in);
	return v;
}

static bool is_served_type(enum dtype d)
{
	return d < DTYPE_OTHER && cast_knows(d);
}

/* The file that a tensor of the rank is in, NULL if there is no such one. */
static const struct ckfile *find_file(const struct ckdir *d, unsigned mp,
				      uint32_t relative, uint32_t *number)
{
	if (relative > d->nexpert)
		return NULL;
	*number = relative ? (uint32_t)d->nmodel + relative - 1 : mp;
	return relative ? &d->expert[relative - 1] : &d->model[mp];
}

bool index_lies_within(uint64_t offset, uint64_t numel, enum dtype dtype,
		       const struct ckfile *f)
{
	uint64_t bytes;

	return checked_mul(numel, dtype_size(dtype), &bytes) &&
	       checked_range(offset, bytes, f->file.size);
}

/* The tensor of a slice whose shape is there. */
static int read_module(struct input *in, struct catalogue *c, struct slice *s)
{
	struct module_tensor *const m = arena_alloc(&c->arena, sizeof(*m));
	const struct ckfile *file;
	struct tensor t = { .ndim = s->ndim };
	uint32_t number = 0;

	if (!m)
		return input_nomem(in);
	file = find_file(in->f->dir, c->mp, input_u32(in), &number);
	t.dtype = (enum dtype)input_u8(in);
	t.requires_grad = input_bool(in);
	m->stride = get_dims(in, &c->arena, s->ndim);
	m->storage = input_u64(in);
	t.storage_offset = input_u64(in);
	t.storage_numel = input_u64(in);
	if (!m->stride)
		return input_nomem(in);
	memcpy(t.shape, s->shape, s->ndim * sizeof(*t.shape));
	memcpy(t.stride, m->stride, s->ndim * sizeof(*t.stride));
	if (in->ended || c->zero3 || !file || !is_served_type(t.dtype) ||
	    tensor_check_view(&t, s->name, NULL) || !tensor_is_dense(&t) ||
	    !index_lies_within(m->storage, t.storage_numel, t.dtype, file))
		return input_damaged(in, "a tensor of a module");
	m->file = number;
	m->dtype = t.dtype;
	m->requires_grad = t.requires_grad;
	m->ndim = s->ndim;
	m->shape = s->shape;
	m->numel = s->numel = t.numel;
	m->storage_offset = t.storage_offset;
	m->storage_numel = t.storage_numel;
	s->module = m;
	return 0;
}

/* The place of a slice whose shape is there. */
static int read_place(struct input *in, const struct catalogue *c,
		      struct slice *s)
{
	s->numel = 1;
	for (unsigned i = 0; i < s->ndim; i++)
		if (!catalogue_multiply(&s->numel, s->shape[i]))
			return input_damaged(in, "a parameter's shape");
	s->group = input_u32(in);
	s->index = input_u32(in);
	s->listed = input_u32(in);
	if (in->ended || s->group >= c->ngroups ||
	    s->listed >= c->groups[s->group].listed || (!s->numel && !c->zero3))
		return input_damaged(in, "a parameter's place");
	return 0;
}

static int read_slice(struct input *in, struct catalogue *c, struct slice *s)
{
	struct value name;
	uint8_t where;

	s->mp = c->mp;
	s->name = input_name(in, &c->arena);
	where = input_u8(in);
	s->ndim = input_u8(in);
	if (in->ended || !s->name || where > INDEX_IN_MODULE ||
	    s->ndim > TENSOR_DIMS_MAX)
		return input_damaged(in, "a parameter");
	name = input_value(s->name);
	if (!catalogue_is_name(&name) ||
	    (s != c->slices && strcmp(s[-1].name, s->name) >= 0))
		return input_damaged(in, "a parameter's name");
	s->shape = get_dims(in, &c->arena, s->ndim);
	if (!s->shape)
		return input_nomem(in);
	return where == INDEX_IN_MODULE ? read_module(in, c, s)
					: read_place(in, c, s);
}

static int read_groups(struct input *in, struct catalogue *c)
{
	c->ngroups = input_count(in, 8);
	if (in->ended || c->ngroups > CATALOGUE_GROUPS_MAX)
		return input_damaged(in, "parameter groups");
	c->groups =
		arena_alloc(&c->arena, (c->ngroups + 1) * sizeof(*c->groups));
	if (!c->groups)
		return input_nomem(in);
	for (size_t g = 0; g < c->ngroups; g++)
		c->groups[g].listed = input_u64(in);
	return 0;
}

static int read_slices(struct input *in, struct catalogue *c)
{
	const size_t least = 6; /* bytes that a slice takes */
	size_t n;
	int rc = read_groups(in, c);

	if (rc)
		return rc;
	n = input_count(in, least);
	if (in->ended || n > CATALOGUE_PARAMS_MAX)
		return input_damaged(in, "parameters");
	c->slices_cap = n;
	c->slices = arena_alloc(&c->arena, (n + 1) * sizeof(*c->slices));
	if (!c->slices)
		return input_nomem(in);
	for (; !rc && c->nslices < n; c->nslices++)
		rc = read_slice(in, c, &c->slices[c->nslices]);
	return rc;
}

/* --- slices of another rank ---------------------------------------------------------- */

/* The same tensor in the rank's own file. */
static int copy_module(struct input *in, struct catalogue *c, struct slice *s)
{
	const struct ckdir *const d = in->f->dir;
	struct module_tensor *const m = arena_alloc(&c->arena, sizeof(*m));

	if (!m)
		return input_nomem(in);
	*m = *s->module;
	if (m->file < d->nmodel)
		m->file = c->mp;
	s->module = m;
	if (!index_lies_within(m->storage, m->storage_numel, m->dtype,
			       m->file < d->nmodel
				       ? &d->model[m->file]
				       : &d->expert[m->file - d->nmodel]))
		return input_damaged(in, "a tensor of a module");
	return 0;
}

/* Slices as `first` has them.  Names and shapes are shared: catalogues are
 * freed together. */
static int copy_slices(struct input *in, struct catalogue *c,
		       const struct catalogue *first)
{
	int rc = 0;

	c->ngroups = first->ngroups;
	c->nslices = c->slices_cap = first->nslices;
	c->groups =
		arena_alloc(&c->arena, (c->ngroups + 1) * sizeof(*c->groups));
	c->slices =
		arena_alloc(&c->arena, (c->nslices + 1) * sizeof(*c->slices));
	if (!c->groups || !c->slices)
		return input_nomem(in);
	for (size_t g = 0; g < c->ngroups; g++)
		c->groups[g].listed = first->groups[g].listed;
	for (size_t i = 0; !rc && i < c->nslices; i++) {
		struct slice *const s = &c->slices[i];

		*s = first->slices[i];
		s->mp = c->mp;
		s->layer = NULL;
		if (s->module)
			rc = copy_module(in, c, s);
	}
	return rc;
}

/* --- catalogues ----------------------------------------------------------------------- */

/* The list that param_shapes was goes on from parameter to parameter. */
static int check_listed(struct input *in, const struct catalogue *c)
{
	for (size_t g = 0; g < c->ngroups; g++)
		for (size_t i = 1; i < c->groups[g].n; i++)
			if (c->groups[g].slices[i - 1]->listed >=
			    c->groups[g].slices[i]->listed)
				return input_damaged(in, "order of parameters");
	return 0;
}

static int read_parameters(struct input *in, struct catalogue *c)
{
	const uint8_t how = input_u8(in);

	if (how == INDEX_SLICES_OWN)
		return read_slices(in, c);
	if (how != INDEX_SLICES_OF_FIRST || c->mp == 0)
		return input_damaged(in, "parameters of a rank");
	return copy_slices(in, c, &in->f->cats[0]);
}

static int read_catalogue(struct input *in, unsigned mp)
{
	struct catalogue *const c = &in->f->cats[mp];
	const struct catalogue_loader l = {
		.c = c, .dir = in->f->dir, .file = "the index", .err = in->err
	};
	int rc;

	*c = (struct catalogue){ .mp = mp, .zero3 = in->f->dir->zero3 };
	rc = read_facts(in, c);
	if (!rc)
		rc = read_rules(in, c);
	if (!rc)
		rc = read_experts(in, c);
	if (!rc)
		rc = read_parameters(in, c);
	if (!rc)
		rc = catalogue_place_experts(&l);
	if (!rc)
		rc = catalogue_index_groups(&l);
	return rc ? rc : check_listed(in, c);
}

/* --- all of it --------------------------------------------------------------------------- */

static void forget(const struct index_facts *f)
{
	for (size_t i = 0; i < f->dir->noptim; i++)
		if (atomic_exchange(&f->loaded[i], false))
			shard_done(&f->shards[i]);
	for (unsigned mp = 0; mp < f->dir->mp_degree; mp++) {
		layout_done(&f->layouts[mp]);
		catalogue_done(&f->cats[mp]);
	}
}

int index_read(const struct index_facts *f, struct span bytes, size_t *len,
	       struct errmsg *err)
{
	struct input in = { .f = f, .rest = bytes, .err = err };
	int rc = read_identity(&in);

	for (unsigned mp = 0; !rc && mp < f->dir->mp_degree; mp++)
		rc = read_catalogue(&in, mp);
	for (unsigned mp = 0; !rc && mp < f->dir->mp_degree; mp++)
		rc = index_read_layout(&in, mp);
	for (size_t i = 0; !rc && i < f->dir->noptim; i++)
		rc = index_read_shard(&in, i);
	if (!rc && in.ended)
		rc = input_damaged(&in, "it ends too early");
	if (rc)
		forget(f);
	else
		*len = bytes.len - in.rest.len;
	return rc;
}
