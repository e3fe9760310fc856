/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The universal tree of a ZeRO tag.  Names, sizes and contents are derived from the
 * model on demand, so the memory of a tree is that of the model, and of the records of
 * files that were opened.
 *
 * A parameter's files are those that DeepSpeed 0.19.8 writes
 * (checkpoint/ds_to_universal.py):
 *
 *   stages 1, 2   {cat_dim: 0, param: tensor of the full shape}; the other
 *		   keys by merge rule (merge_tp_slices)
 *   stage 3	   a bare 1-D tensor (merge_zero3_slices)
 *   AutoEP	   {param, cat_dim: 0, is_expert_param, ep_num_experts} for
 *		   experts, in all stages (autoep_universal.py)
 *   step	   the bare object that the shard holds; stages 1 and 2 only
 *   any stage	   as stages 1 and 2, whichever stage saved the checkpoint:
 *		   stage 3 loads these files as well
 *   not owned by the optimizer
 *		   {param: the module's tensor.float()}; a float32 tensor stays
 *		   a view and is written with its whole storage
 */
#include <stdio.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/format/value.h"
#include "ckpt/io/shards.h"
#include "ckpt/table/experts.h"
#include "ckpt/table/geometry.h"
#include "ckpt/remote/cache.h"
#include "ckpt/remote/latency.h"
#include "ckpt/views/view_impl.h"
#include "ckpt/views/zero_object.h"

struct view_universal {
	struct view view;
	struct view_paths paths; /* of parameters */
};

enum { ROOT, ZERO, MODEL, OPTIMIZER, PARAM, STATE };

static struct view_universal *universal_of(struct view *v)
{
	return (struct view_universal *)v;
}

/* The number of model-states files in a run of the checkpoint's stage. */
static size_t count_models(const struct checkpoint *c)
{
	return (size_t)(c->tp * c->pp) * (c->facts.zero3 ? c->dp : 1);
}

/* Model states of a rank.  A tree for any stage also has those of the first data-parallel rank
 * under the names that engines of other stages use (`other`). */
struct model_states {
	unsigned mp, rank;
	bool other;
	const struct ckpt_file *file; /* NULL: none has them */
};

static struct model_states model_of(const struct entry *e)
{
	const struct checkpoint *c = e->view->c;
	const size_t n = count_models(c), ranks = n / (c->tp * c->pp);
	struct model_states m = { .other = e->i >= n };

	m.rank = m.other ? 0 : (unsigned)(e->i % ranks);
	m.mp = (unsigned)(m.other ? e->i - n : e->i / ranks);
	m.file = checkpoint_file(c, OBJECT_MODEL, m.mp, m.rank);
	return m;
}

static int name_model(const struct entry *e, char out[NAME_MAX + 1])
{
	const struct model_states m = model_of(e);

	if (m.file && !m.other)
		return view_set_name(out, m.file->name, "");
	names_format((struct ckname){ .kind = m.other && !e->view->c->facts.zero3 ? CKPT_FILE_MODEL3
									       : CKPT_FILE_MODEL,
				      .mp = m.mp },
		     false, out);
	return 1;
}

/* With AutoEP's record of tensor parallelism, only an engine with the run's ranks loads a tree;
 * without the record, engines without tensor parallelism do. */
static bool is_folded(const struct checkpoint *c)
{
	return c->tp > 1 && c->moe && (*c->moe)->n && (*c->moe)->layers->fused;
}

static void describe_model(const struct entry *e, struct entry_attrs *out)
{
	const struct checkpoint *c = e->view->c;
	const struct ckpt_file *f = model_of(e).file;

	if (f && !is_folded(c))
		*out = view_copy_of(f, c->files, c->shards);
}

/* The text that hf_to_universal.py writes. */
static struct value *lay_out_source(const struct entry *e, struct file_layout *d)
{
	(void)e;
	bytebuf_add_str(&d->head, "Huggingface checkpoint");
	return NULL;
}

static struct value *lay_out_model(const struct entry *e, struct file_layout *d)
{
	const struct model_states m = model_of(e);
	struct value *root = zero_object_states(e->view->c, m.mp, m.rank, d);
	const struct value_field folding = { KEY_FOLDING, NULL };

	return root && is_folded(e->view->c) ? value_edit(&d->a, root, &folding, 1) : root;
}

/*
 * The files of a parameter: slot 0 is fp32.pt, slot i is state i - 1 of its group.  A
 * parameter that the optimizer does not own has no group.
 */
static int name_state(const struct entry *e, char out[NAME_MAX + 1])
{
	struct checkpoint *c = e->view->c;
	const struct param_states *states;
	const struct param_state *st;
	int rc;

	if (e->dir >= c->nparams)
		return 0;
	rc = c->ops->states(c, &c->params[e->dir], &states, e->err);
	if (rc)
		return rc;
	if (states && states->refused)
		return errmsg_set(e->err, states->refused_rc, "%s", states->refused);
	if (e->k >= (states ? states->n : 1))
		return 0;
	if (e->k == 0)
		return view_set_name(out, "fp32", ".pt");
	st = &states->v[e->k];
	/* Stage 3 trees have no file for a state that is not a tensor: the loader takes the
	 * step from optimizer_state.pt.  hf_to_universal.py writes none. */
	if (st->kind != STATE_FLAT && !e->view->options.any_stage && (!c->ranks || c->facts.zero3))
		return 0;
	return view_set_name(out, st->name, ".pt");
}

/* Return the shape of sub-parameters in the newer form, which lists each part; older files have
 * only the number of equal parts. */
static struct value *spell_out(struct arena *a, const struct param *p,
			       const struct value_seq *shape, int64_t dim)
{
	const int64_t n = shape->v[dim]->i;
	struct value *parts = value_new(a, VALUE_TUPLE);
	struct value *out = value_new(a, VALUE_TUPLE);

	for (int64_t i = 0; i < n && !a->failed; i++)
		value_append(a, parts, (int64_t)p->shape[dim] / n);
	for (size_t i = 0; i < shape->n; i++)
		value_append(a, out, (int64_t)i == dim ? parts : shape->v[i]);
	return out;
}

/* Build a SubparamShape (DeepSpeed's checkpoint/universal_checkpoint.py). */
static struct value *sub_param_shape(struct arena *a, const struct param *p)
{
	const struct value *spec = p->merge.spec;
	struct value *shape = value_find(spec, "shape");
	struct value *dim = value_find(spec, "partition_dim");
	uint64_t at;

	/* geometry_init has checked both. */
	if (!p->merge.widths && value_get_count(dim, &at) && value_item(shape, at)->kind == VALUE_INT)
		shape = spell_out(a, p, value_items(shape), (int64_t)at);
	return value_new_object(
		a, value_new_global(a, "deepspeed.checkpoint.universal_checkpoint", "SubparamShape"),
		value_dict_of(a, "patterns", value_find(spec, "patterns"), "shape", shape,
			      "partition_dim", dim));
}

/* Build the dict around a parameter's tensor. */
static struct value *wrap_tensor(struct arena *a, const struct param *p, struct tensor *t)
{
	const struct merge *m = &p->merge;
	struct value *dict = value_new(a, VALUE_DICT);

	/* A tensor of the module has no rule: all fields of `m` are 0. */
	if (p->first && m->rule == MERGE_CAT)
		value_put(a, dict, "cat_dim", m->dim);
	if (merge_rule_parts(m->rule) > 1) {
		value_put(a, dict, "cat_dim", 0u);
		value_put(a, dict, "param_n_sub_params", merge_rule_parts(m->rule));
	}
	if (m->rule == MERGE_SUB_PARAMS)
		value_put(a, dict, "sub_param_shape", sub_param_shape(a, p));
	if (m->vocab) {
		/* The converter saves a slice, which is a view: the rows of
		 * padding stay in the storage. */
		value_put(a, dict, "vocab_tensor", (bool)true);
		t->shape[0] = m->vocab_rows;
	}
	value_put(a, dict, "param", tensor_to_value(a, t));
	if (m->rule == MERGE_EXPERTS) {
		value_put(a, dict, "cat_dim", 0u);
		value_put(a, dict, "is_expert_param", (bool)true);
		value_put(a, dict, "ep_num_experts", m->experts->n);
	}
	return dict;
}

/* Same as in hf_to_universal.py (DeepSpeed's pull request 7212), whose trees lack fields that
 * DeepSpeed 0.19.8 reads. */
static struct value *wrap_hf(struct arena *a, const struct param *p, const struct tensor *t)
{
	const struct value_field fields[] = {
		{ "param", tensor_to_value(a, t) },
		{ "cat_dim", value_new_int(a, 0) },
		{ "vocab_tensor", p->merge.vocab ? value_new_bool(a, true) : NULL },
	};

	return value_new_fields(a, fields, COUNT(fields));
}

/* Make a state: one element for each of the parameter's, or one for the whole group, such as
 * step. */
static struct value *lay_out_owned(const struct entry *e, const struct param *p,
				   const struct param_state *st, struct file_layout *d)
{
	struct checkpoint *c = e->view->c;
	const bool number = st->kind != STATE_FLAT;
	const bool bare = !number && checkpoint_is_flat(c) && !e->view->options.any_stage &&
			  p->merge.rule != MERGE_EXPERTS;
	struct extent_map *map;
	struct tensor t;

	if (st->kind == STATE_INT)
		return value_new_int(&d->a, st->i);
	if (st->kind == STATE_FLOAT)
		return value_new_float(&d->a, st->f);
	tensor_init(&t, st->dtype, bare ? &p->numel : p->shape, number ? 0 : bare ? 1 : p->ndim,
		    st->requires_grad);
	map = layout_add_storage(d, &t);
	if (d->extents)
		layout_note(d, checkpoint_extents(c, p, st, map, &d->gathers, d->err));
	return number || bare ? tensor_to_value(&d->a, &t) : wrap_tensor(&d->a, p, &t);
}

/* Make a tensor like a stored one: with its elements, or zeros for another state.  Only tensors
 * of a float32 module are written with their whole storage. */
static struct value *lay_out_stored(const struct entry *e, const struct param *p,
				    struct file_layout *d)
{
	const struct stored *m = p->module;
	const bool hf = !e->view->c->ranks, cast = hf || m->dtype != DTYPE_F32;
	struct tensor t, view;
	struct extent_map *map;
	uint64_t skip = 0;
	bool dense;

	stored_describe(m, &view);
	t = view;
	t.dtype = DTYPE_F32;
	dense = !cast || tensor_is_dense(&view);
	if (!dense)
		tensor_init(&t, DTYPE_F32, m->shape, m->ndim, false);
	if (dense && cast) {
		skip = t.storage_offset * dtype_size(m->dtype);
		t.storage_offset = 0;
		t.storage_numel = t.numel;
	}
	t.requires_grad = m->requires_grad && e->k == 0;
	map = layout_add_storage(d, &t);
	if (e->k)
		layout_add_zeros(d, map, t.numel * sizeof(float));
	else if (dense)
		layout_need_memory(d, extent_add_cast(map, t.storage_numel, m->file,
						      m->storage + skip, m->dtype, DTYPE_F32));
	else
		layout_need_memory(d, !d->extents || gathers_add_tensor(&d->gathers, &view, m->file,
								     m->storage, DTYPE_F32, map));
	return hf ? wrap_hf(&d->a, p, &t) : wrap_tensor(&d->a, p, &t);
}

/* Make a module's tensor that is not in a single storage. */
static struct value *lay_out_other(const struct entry *e, const struct param *p,
				   struct file_layout *d)
{
	struct extent_map *map;
	struct tensor t;

	tensor_init(&t, DTYPE_F32, p->shape, p->ndim, false);
	map = layout_add_storage(d, &t);
	if (d->extents)
		layout_note(d, checkpoint_module(e->view->c, p, DTYPE_F32, map, &d->gathers, d->err));
	return wrap_tensor(&d->a, p, &t);
}

static struct value *lay_out_state(const struct entry *e, struct file_layout *d)
{
	struct checkpoint *c = e->view->c;
	const struct param *p = &c->params[e->dir];
	const struct param_states *states;
	const struct param_state *st;

	if (!layout_note(d, c->ops->states(c, p, &states, d->err)))
		return NULL;
	st = states ? &states->v[e->k] : NULL;
	if (p->first || (st && st->kind != STATE_FLAT))
		return lay_out_owned(e, p, st, d);
	return (p->module ? lay_out_stored : lay_out_other)(e, p, d);
}

/* A file of a Hugging Face directory's parameter has the time and the readers of the file that it
 * is made from. */
static void describe_param(const struct entry *e, struct entry_attrs *out)
{
	const struct checkpoint *c = e->view->c;

	if (e->i < c->nparams)
		out->mtime_s = c->files[c->params[e->i].module->file].mtime_s;
}

static void describe_state(const struct entry *e, struct entry_attrs *out)
{
	const struct checkpoint *c = e->view->c;
	const struct ckpt_file *f =
		&c->files[e->dir < c->nparams ? c->params[e->dir].module->file : 0];

	out->mtime_s = f->mtime_s;
	out->readable_by = &f->readable_by;
}

/* Check that a parameter's weights and states can be computed. */
static int check_param(struct checkpoint *c, const struct param *p, struct errmsg *err)
{
	const struct param_states *states;
	struct errmsg why = { "" };
	int rc;

	if (!p->computed)
		return 0;
	rc = c->ops->states(c, p, &states, err);
	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < states->n; i++)
		if (states->v[i].kind == STATE_FLAT)
			rc = checkpoint_check_param(p, &states->v[i], &why);
	return rc ? errmsg_set(err, rc, "%s: %s", c->path, why.text) : 0;
}

int view_check_params(struct view *v, struct errmsg *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < v->c->nparams; i++)
		rc = check_param(v->c, &v->c->params[i], err);
	return rc;
}

static int universal_check(struct view *v, struct errmsg *err)
{
	return view_paths_check(&universal_of(v)->paths, err)
		       ?: v->c->ops->check(v->c, true, err)
		       ?: view_check_params(v, err);
}

static void universal_warm(struct view *v)
{
	struct checkpoint *c = v->c;
	uint32_t shards[VIEW_PREFETCH_SHARDS];
	uint64_t size;
	size_t n = 0;

	if (!c->ops->warm || !latency_maybe_high(cache_latency(c->u)))
		return;
	for (; n < VIEW_PREFETCH_SHARDS && n < c->nfiles; n++)
		shards[n] = (uint32_t)n;
	c->ops->warm(c, n);
	view_file_size(v, OPTIMIZER, 0, &size, NULL);
	shards_check_files(v->c->shards, shards, n, NULL);
}

static void universal_close(struct view *v)
{
	view_paths_done(&universal_of(v)->paths);
}

static int universal_make(struct view *v, struct errmsg *err)
{
	static const char *const zero[] = { "zero" };
	static const char *const optimizer[] = { "optimizer_state.pt" };
	static const char *const source[] = { "source.txt" };
	const struct checkpoint *c = v->c;
	const bool hf = !c->ranks;
	struct view_paths *paths = &universal_of(v)->paths;
	const int rc = view_paths_init(paths, v->c->params, v->c->nparams, sizeof(*v->c->params),
				       checkpoint_path(c, OBJECT_MODEL, 0, 0), err);

	if (rc)
		return rc;
	/* A source without a ZeRO stage gets a tree for all stages. */
	v->options.any_stage |= c->facts.source != NULL;

	/* Trees of Hugging Face weights are always for any stage. */
	const bool any = v->options.any_stage, full = !hf || any;
	const struct entry_group groups[] = {
		{ .dir = ROOT, .is_dir = true, .n = 1, .names = zero },
		{ .dir = ROOT,
		  .n = full ? count_models(c) + (any ? c->tp * c->pp : 0) : 0,
		  .name = name_model,
		  .readable_by = &v->names,
		  .attrs = describe_model,
		  .lay_out = lay_out_model },
		{ .dir = ZERO,
		  .n = full,
		  .names = optimizer,
		  .readable_by = &c->readable_by, /* the view's own files have objects from all
						   * pickles */
		  .lay_out = view_lay_out_optimizer },
		{ .dir = ZERO,
		  .is_dir = true,
		  .n = paths->ndirs,
		  .paths = paths,
		  .attrs = hf ? describe_param : NULL },
		{ .dir = PARAM,
		  .n = PARAM_STATES_MAX + 1,
		  .name = name_state,
		  .attrs = hf ? describe_state : NULL,
		  .lay_out = lay_out_state },
		{ .dir = ROOT, .n = hf, .names = source, .lay_out = lay_out_source },
	};

	view_set_groups(v, groups, COUNT(groups));
	return 0;
}

const struct view_ops view_universal = {
	.suffix = "_universal",
	.option = "universal",
	.takes = TAKES_ANY_STAGE,
	.size = sizeof(struct view_universal),
	.make = universal_make,
	.close = universal_close,
	.check = universal_check,
	.warm = universal_warm,
	.warn = view_universal_warn,
};
