/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The form of an index.  Each structure has one function, which writes or reads
 * it (index_stream.h); numbers of elements and the experts of slices follow from
 * the rest and are left out.  Other threads use the tables while they are
 * written: these functions store into an array's elements only when they read.
 *
 *   version	INDEX_VERSION " " PACKAGE_VERSION
 *   files	degrees and numbers of files; the identity of each file
 *   tables	of each model-parallel rank
 *   profiles	of each model-parallel rank (index_profile.c)
 *
 * What was read passes the checks that a model-states file passes: those of
 * rank_params.c and experts.c where they do not depend on a pickle, and the same
 * ones here where they do.  Count up INDEX_VERSION with every change of the form
 * or of what is read from pickles.
 */
#include "ckpt/zero/index.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/model/merge_rules.h"
#include "ckpt/model/rank_params_build.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/tensor/cast.h"
#include "ckpt/zero/index_stream.h"

#define INDEX_VERSION "9"

/* Bytes that a warning, a MoE layer, a group, a slice take at least. */
enum { WARNING_LEN = 4, LAYER_LEN = 9, GROUP_LEN = 8, SLICE_LEN = 6 };

INDEX_KNOWS(module_tensor, 64);
INDEX_KNOWS(slice, 80);
INDEX_KNOWS(slice_group, 32);
INDEX_KNOWS(expert_layer, 40);
INDEX_KNOWS(experts, 24);
INDEX_KNOWS(rank_params, 216);

/* --- files ------------------------------------------------------------------------ */

/* The device is left out: network file systems have another number after each mount and
 * on each node. */
static void add_identity(struct bytebuf *b, const struct tagdir *d)
{
	static const char version[] = INDEX_VERSION " " PACKAGE_VERSION;

	bytebuf_add_le32(b, sizeof(version) - 1);
	bytebuf_add(b, version, sizeof(version) - 1);
	bytebuf_add_le32(b, d->mp_degree);
	bytebuf_add_le32(b, d->dp_degree);
	bytebuf_add_u8(b, d->zero3);
	bytebuf_add_le32(b, (uint32_t)d->nmodel);
	bytebuf_add_le32(b, (uint32_t)d->nexpert);
	bytebuf_add_le32(b, (uint32_t)d->nswapped);
	for (size_t i = 0; i < tagdir_count(d); i++) {
		const struct fileid *const id = &tagdir_file(d, i)->file;

		bytebuf_add_le64(b, id->ino);
		bytebuf_add_le64(b, id->size);
		bytebuf_add_le64(b, (uint64_t)id->mtime_ns);
		bytebuf_add_le64(b, (uint64_t)id->ctime_ns);
	}
}

/* Does the input begin with the identity of these files? */
static int check_identity(struct index_stream *x, const struct tagdir *d,
			  struct errmsg *err)
{
	struct bytebuf own = { 0 };
	size_t version_len;
	int rc = 0;

	add_identity(&own, d);
	if (own.failed) {
		bytebuf_done(&own);
		return errmsg_nomem(err, NULL);
	}
	version_len = 4 + get_le32(own.data);
	if (x->in.len < version_len ||
	    memcmp(x->in.p, own.data, version_len) != 0)
		rc = errmsg_set(err, -ESTALE, "is of another version of ucfs");
	else if (x->in.len < own.len || memcmp(x->in.p, own.data, own.len) != 0)
		rc = errmsg_set(err, -ESTALE,
				"is of other files: %s has changed", d->path);
	else
		x->in = (struct span){ x->in.p + own.len, x->in.len - own.len };
	bytebuf_done(&own);
	return rc;
}

/* --- metadata --------------------------------------------------------------------- */

static void index_metadata(struct index_stream *x, struct rank_params *c)
{
	index_bool(x, &c->round_robin);
	index_i64(x, &c->stage);
	index_i64(x, &c->global_steps);
	index_i64(x, &c->skipped_steps);
	index_i64(x, &c->dp_world_size);
	index_i64(x, &c->mp_world_size);
	index_i64(x, &c->tp_degree);
	index_i64(x, &c->pp_degree);
	index_dtype(x, &c->module_dtype);
	index_name(x, &c->arena, &c->ds_version);
	index_count(x, &c->nwarnings, WARNING_LEN, SIZE_MAX);
	c->warnings = index_array(x, &c->arena, c->warnings, c->nwarnings,
				  sizeof(*c->warnings));
	for (size_t i = 0; c->warnings && i < c->nwarnings; i++)
		index_name(x, &c->arena, &c->warnings[i]);
}

/* The rank's universal_checkpoint_info as a pickle; empty if it has none. */
static int write_rules(struct index_stream *x, const struct rank_params *c,
		       struct errmsg *err)
{
	const struct value *const info = merge_rules_info(c->rules);
	struct pickle_storages storages = { 0 };
	struct bytebuf pickle = { 0 };
	int rc = info ? pickle_dump(info, &pickle, &storages, err) : 0;

	if (!rc)
		index_span(x, &(struct span){ pickle.data, pickle.len });
	x->out->failed |= pickle.failed;
	pickle_storages_done(&storages);
	bytebuf_done(&pickle);
	return rc;
}

static int read_rules(struct index_stream *x, struct rank_params *c,
		      struct errmsg *err)
{
	struct span pickle = { 0 };
	struct arena a = { 0 };
	struct value *info = NULL;
	int rc = 0;

	index_span(x, &pickle);
	if (pickle.len && !x->failed)
		rc = pickle_load(pickle, "universal_checkpoint_info", &a, &info,
				 err);
	if (!rc)
		rc = merge_rules_new(info, "the index", &c->rules, err);
	c->has_uc_info = value_pairs(info) != NULL;
	arena_done(&a);
	return rc;
}

/* --- experts ---------------------------------------------------------------------- */

static void index_layer(struct index_stream *x, struct arena *a,
			struct expert_layer *l)
{
	struct expert_place *places;

	index_name(x, a, &l->prefix);
	index_bool(x, &l->fused);
	index_u32(x, &l->n);
	if (!l->fused)
		return;
	index_u32(x, &l->local);
	index_i64(x, &l->ep);
	if (index_reads(x))
		x->failed |= l->n > x->in.len / sizeof(*places);
	places = index_array(x, a, l->places, l->n, sizeof(*places));
	for (unsigned e = 0; places && e < l->n; e++) {
		index_u32(x, &places[e].rank);
		index_u32(x, &places[e].index);
	}
	l->places = places;
}

static void index_experts(struct index_stream *x, struct rank_params *c)
{
	struct experts *const e = &c->experts;

	index_bool(x, &e->data_first);
	index_count(x, &e->n, LAYER_LEN, EXPERTS_LAYERS_MAX);
	e->layers =
		index_array(x, &c->arena, e->layers, e->n, sizeof(*e->layers));
	for (size_t i = 0; e->layers && i < e->n; i++) {
		struct expert_layer l = e->layers[i];

		index_layer(x, &c->arena, &l);
		if (index_reads(x))
			e->layers[i] = l;
	}
}

/* Every expert has a place, and every place one expert. */
static int check_places(struct arena *a, const struct expert_layer *l,
			struct errmsg *err)
{
	bool *const taken = arena_alloc(a, l->n);

	if (!taken)
		return errmsg_nomem(err, NULL);
	for (unsigned e = 0; e < l->n; e++) {
		const struct expert_place *const p = &l->places[e];
		const size_t at = (size_t)p->rank * l->local + p->index;

		if (p->index >= l->local || p->rank >= l->n / l->local ||
		    taken[at])
			return index_damaged(err, "places of experts");
		taken[at] = true;
	}
	return 0;
}

static int check_experts(struct rank_params *c, struct errmsg *err)
{
	unsigned total = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < c->experts.n; i++) {
		const struct expert_layer *const l = &c->experts.layers[i];

		if (!*l->prefix || strlen(l->prefix) > EXPERT_NAME_MAX - 16 ||
		    l->n < 1 || l->n > EXPERTS_MAX - total)
			return index_damaged(err, "a MoE layer");
		total += l->n;
		if (!l->fused && !experts_is_native(l->prefix))
			return index_damaged(err, "a MoE layer's name");
		if (l->fused && (l->local < 1 || l->n % l->local))
			return index_damaged(err, "a MoE layer's experts");
		if (l->fused)
			rc = check_places(&c->arena, l, err);
	}
	return rc;
}

/* --- slices ----------------------------------------------------------------------- */

/* The file of a tensor: 0 for the rank's model states, i + 1 for expert file i,
 * so that ranks that are alike have the same bytes. */
static void index_file(struct index_stream *x, const struct rank_params *c,
		       const struct tagdir *d, uint32_t *file)
{
	const uint32_t nmodel = (uint32_t)d->nmodel;
	uint32_t relative = *file < nmodel ? 0 : *file - nmodel + 1;

	index_u32(x, &relative);
	if (index_reads(x))
		x->failed |= relative > d->nexpert;
	*file = relative ? nmodel + relative - 1 : c->mp;
}

static void index_module(struct index_stream *x, struct rank_params *c,
			 const struct tagdir *d, struct slice *s)
{
	struct module_tensor *const to =
		index_array(x, &c->arena, s->module, 1, sizeof(*to));
	struct module_tensor m = { 0 };

	if (!to)
		return;
	m = *to;
	m.ndim = s->ndim;
	m.shape = s->shape;
	index_file(x, c, d, &m.file);
	index_dtype(x, &m.dtype);
	index_bool(x, &m.requires_grad);
	index_dims(x, &c->arena, &m.stride, m.ndim);
	index_u64(x, &m.storage);
	index_u64(x, &m.storage_offset);
	index_u64(x, &m.storage_numel);
	if (index_reads(x))
		*to = m;
	s->module = to;
}

static void index_slice(struct index_stream *x, struct rank_params *c,
			const struct tagdir *d, struct slice *s)
{
	bool in_module = s->module != NULL;
	uint8_t ndim = (uint8_t)s->ndim;

	s->mp = c->mp;
	index_name(x, &c->arena, &s->name);
	index_bool(x, &in_module);
	index_u8(x, &ndim);
	x->failed |= ndim > TENSOR_DIMS_MAX;
	s->ndim = x->failed ? 0 : ndim;
	index_dims(x, &c->arena, &s->shape, s->ndim);
	if (in_module) {
		index_module(x, c, d, s);
		return;
	}
	index_u32(x, &s->group);
	index_u32(x, &s->index);
	index_u32(x, &s->param_shapes_index);
}

static void index_slices(struct index_stream *x, struct rank_params *c,
			 const struct tagdir *d)
{
	index_count(x, &c->ngroups, GROUP_LEN, RANK_PARAMS_GROUPS_MAX);
	c->groups = index_array(x, &c->arena, c->groups, c->ngroups,
				sizeof(*c->groups));
	for (size_t g = 0; c->groups && g < c->ngroups; g++)
		index_u64(x, &c->groups[g].param_shapes_count);
	index_count(x, &c->nslices, SLICE_LEN, RANK_PARAMS_MAX);
	c->slices = index_array(x, &c->arena, c->slices, c->nslices,
				sizeof(*c->slices));
	for (size_t i = 0; c->slices && i < c->nslices; i++) {
		struct slice s = c->slices[i];

		index_slice(x, c, d, &s);
		if (index_reads(x))
			c->slices[i] = s;
	}
}

static int check_module(const struct rank_params *c, const struct tagdir *d,
			struct slice *s, struct module_tensor *m,
			struct errmsg *err)
{
	const struct tag_file *const f =
		m->file < d->nmodel ? &d->model[m->file]
				    : &d->expert[m->file - d->nmodel];
	struct tensor t = {
		.dtype = m->dtype,
		.requires_grad = m->requires_grad,
		.ndim = m->ndim,
		.storage_offset = m->storage_offset,
		.storage_numel = m->storage_numel,
	};
	uint64_t bytes;

	memcpy(t.shape, m->shape, m->ndim * sizeof(*t.shape));
	memcpy(t.stride, m->stride, m->ndim * sizeof(*t.stride));
	if (c->zero3 || t.dtype == DTYPE_OTHER || !cast_knows(t.dtype) ||
	    tensor_check_view(&t, s->name, NULL) || !tensor_is_dense(&t) ||
	    !checked_mul(t.storage_numel, dtype_size(t.dtype), &bytes) ||
	    !checked_range(m->storage, bytes, f->file.size))
		return index_damaged(err, "a tensor of a module");
	m->numel = s->numel = t.numel;
	return 0;
}

static int check_place(const struct rank_params *c, struct slice *s,
		       struct errmsg *err)
{
	s->numel = 1;
	for (unsigned i = 0; i < s->ndim; i++)
		if (!rank_params_multiply(&s->numel, s->shape[i]))
			return index_damaged(err, "a parameter's shape");
	if (s->group >= c->ngroups ||
	    s->param_shapes_index >= c->groups[s->group].param_shapes_count ||
	    (!s->numel && !c->zero3))
		return index_damaged(err, "a parameter's place");
	return 0;
}

static int check_slices(struct rank_params *c, const struct tagdir *d,
			struct errmsg *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < c->nslices; i++) {
		struct slice *const s = &c->slices[i];

		if (!names_is_param(s->name) ||
		    (i && strcmp(s[-1].name, s->name) >= 0))
			return index_damaged(err, "a parameter's name");
		rc = s->module ? check_module(c, d, s,
					      (struct module_tensor *)s->module,
					      err)
			       : check_place(c, s, err);
	}
	return rc;
}

/* --- slices of another rank ---------------------------------------------------------- */

/* Tensor-parallel ranks mostly have the same names and shapes: whether a rank's
 * are the first rank's (8 bits), and if not, its own. */
static void write_slices(struct index_stream *x, struct rank_params *c,
			 const struct tagdir *d, struct bytebuf *first)
{
	struct bytebuf own = { 0 };
	bool same;

	index_slices(&(struct index_stream){ .out = &own }, c, d);
	same = c->mp && own.len == first->len &&
	       memcmp(own.data, first->data, own.len) == 0;
	index_bool(x, &same);
	if (!same)
		bytebuf_add(x->out, own.data, own.len);
	x->out->failed |= own.failed;
	if (c->mp == 0)
		*first = own;
	else
		bytebuf_done(&own);
}

/* Take the slices of `first`.  Names and shapes are shared: tables are freed
 * together. */
static int copy_slices(struct rank_params *c, const struct tagdir *d,
		       const struct rank_params *first, struct errmsg *err)
{
	int rc = 0;

	assert(c->mp && !first->mp);
	c->ngroups = first->ngroups;
	c->nslices = first->nslices;
	c->groups =
		arena_alloc(&c->arena, (c->ngroups + 1) * sizeof(*c->groups));
	c->slices =
		arena_alloc(&c->arena, (c->nslices + 1) * sizeof(*c->slices));
	if (!c->groups || !c->slices)
		return errmsg_nomem(err, NULL);
	for (size_t g = 0; g < c->ngroups; g++)
		c->groups[g].param_shapes_count =
			first->groups[g].param_shapes_count;
	for (size_t i = 0; !rc && i < c->nslices; i++) {
		struct slice *const s = &c->slices[i];
		struct module_tensor *m;

		*s = first->slices[i];
		s->mp = c->mp;
		s->layer = NULL;
		if (!s->module)
			continue;
		m = arena_alloc(&c->arena, sizeof(*m));
		if (!m)
			return errmsg_nomem(err, NULL);
		*m = *s->module;
		if (m->file == first->mp)
			m->file = c->mp;
		s->module = m;
		rc = check_module(c, d, s, m, err);
	}
	return rc;
}

static int read_slices(struct index_stream *x, struct rank_params *c,
		       const struct tagdir *d, const struct rank_params *first,
		       struct errmsg *err)
{
	bool same = false;

	index_bool(x, &same);
	if (same && c->mp && !x->failed)
		return copy_slices(c, d, first, err);
	x->failed |= same;
	index_slices(x, c, d);
	return x->failed ? index_failed(x, err) : check_slices(c, d, err);
}

/* --- tables ----------------------------------------------------------------------- */

/* The parameters of a group are in param_shapes' order. */
static int check_order(const struct rank_params *c, struct errmsg *err)
{
	for (size_t g = 0; g < c->ngroups; g++)
		for (size_t i = 1; i < c->groups[g].n; i++)
			if (c->groups[g].slices[i - 1]->param_shapes_index >=
			    c->groups[g].slices[i]->param_shapes_index)
				return index_damaged(err, "order of parameters");
	return 0;
}

/* Fill in what follows from the slices of a table. */
static int complete_table(struct rank_params *c, const struct tagdir *d,
			  struct errmsg *err)
{
	const struct rank_params_loader l = {
		.c = c, .dir = d, .file = "the index", .err = err
	};
	int rc = rank_params_place_experts(&l);

	c->slices_cap = c->nslices;
	c->warnings_cap = c->nwarnings;
	if (!rc)
		rc = rank_params_index_groups(&l);
	return rc ? rc : check_order(c, err);
}

static int read_table(struct index_stream *x, struct rank_params *ranks,
		      unsigned mp, const struct tagdir *d, struct errmsg *err)
{
	struct rank_params *const c = &ranks[mp];
	int rc;

	*c = (struct rank_params){ .mp = mp, .zero3 = d->zero3 };
	index_metadata(x, c);
	rc = read_rules(x, c, err);
	if (rc)
		return rc;
	index_experts(x, c);
	rc = x->failed ? index_failed(x, err) : check_experts(c, err);
	if (!rc)
		rc = read_slices(x, c, d, &ranks[0], err);
	return rc ? rc : complete_table(c, d, err);
}

int index_read(const struct tagdir *dir, struct rank_params *ranks,
	       struct span *bytes, struct errmsg *err)
{
	struct index_stream x = { .in = *bytes };
	int rc = check_identity(&x, dir, err);

	for (unsigned mp = 0; !rc && mp < dir->mp_degree; mp++)
		rc = read_table(&x, ranks, mp, dir, err);
	if (!rc)
		*bytes = x.in;
	for (unsigned mp = 0; rc && mp < dir->mp_degree; mp++)
		rank_params_done(&ranks[mp]);
	return rc;
}

int index_write(const struct tagdir *dir, const struct rank_params *ranks,
		struct bytebuf *out, struct errmsg *err)
{
	struct index_stream x = { .out = out };
	struct bytebuf first = { 0 };
	int rc = 0;

	add_identity(out, dir);
	for (unsigned mp = 0; !rc && mp < dir->mp_degree; mp++) {
		struct rank_params c = ranks[mp];

		index_metadata(&x, &c);
		rc = write_rules(&x, &c, err);
		index_experts(&x, &c);
		write_slices(&x, &c, dir, &first);
	}
	bytebuf_done(&first);
	assert(!x.failed);
	if (!rc && out->failed)
		rc = errmsg_nomem(err, NULL);
	return rc;
}
