/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names and shapes, from a model-states file.
 *
 * `param_shapes` lists the optimizer's parameters per flat group, in the order
 * of the flat buffer (DeepSpeed engine.py _get_zero_param_shapes). Offsets in
 * the shards follow that order, even if round_robin_gradients shuffled it.
 */
#include "ckpt/table/rank_params.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/format/module_dict.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/table/rank_params_build.h"

/* Limits far above any real run. */
#define RANK_PARAMS_MAX (1u << 22)
#define RANK_PARAMS_GROUPS_MAX (1u << 16)

bool ties_add(struct ties *t, struct arena *a, const char *name, const char *of)
{
	if (!arena_reserve(a, &t->v, t->n, &t->cap, t->n + 1, sizeof(*t->v)))
		return false;
	t->v[t->n++] = (struct tie){ name, of };
	return true;
}

/* Append a slice; the pointer is valid until the next call. NULL if memory runs
 * out. */
static struct slice *add_slice(const struct rank_params_loader *l, const char *name)
{
	struct rank_params *c = l->c;
	const char *copy = arena_strdup(&c->arena, name);

	if (!copy || !arena_reserve(&c->arena, &c->slices, c->nslices, &c->slices_cap,
				    c->nslices + 1, sizeof(*c->slices)))
		return NULL;
	c->slices[c->nslices] = (struct slice){ .name = copy, .mp = c->mp };
	return &c->slices[c->nslices++];
}

static int rank_params_set_shape(const struct rank_params_loader *l, struct slice *p,
				 const struct value *shape)
{
	struct errmsg why;
	struct tensor t;

	if (tensor_set_shape(&t, shape, &why))
		return ERRMSG_FILE(l, -EBADMSG, "param_shapes: %s: %s", p->name, why.text);
	p->numel = t.numel;
	p->ndim = t.ndim;
	p->shape = arena_copy(&l->c->arena, t.shape, t.ndim * sizeof(*t.shape));
	return p->shape ? 0 : errmsg_nomem(l->err, l->file);
}

static int load_group(const struct rank_params_loader *l, const struct value_dict *shapes,
		      uint32_t group)
{
	struct slice_group *g = &l->c->groups[group];
	struct arena *a = &l->c->arena;

	g->n = shapes->n;
	g->slices = arena_alloc(a, (g->n + 1) * sizeof(*g->slices));
	if (!g->slices)
		return errmsg_nomem(l->err, l->file);
	for (size_t i = 0; i < shapes->n; i++) {
		const struct value *name = shapes->v[i].key;
		struct slice *p;
		int rc;

		if (!value_is_cstr(name) || !*name->str.p)
			return ERRMSG_FILE(l, -ENOTSUP,
					   "param_shapes: a parameter of group %u has no name",
					   group);
		p = add_slice(l, name->str.p);
		if (!p)
			return errmsg_nomem(l->err, l->file);
		p->group = group;
		p->index = (uint32_t)i;
		rc = rank_params_set_shape(l, p, shapes->v[i].val);
		if (rc)
			return rc;
		if (p->numel || l->c->facts.zero3)
			continue;
		g->slices[i] = arena_copy(a, p, sizeof(*p));
		if (!g->slices[i])
			return errmsg_nomem(l->err, l->file);
		l->c->nslices--;
	}
	return 0;
}

static const struct value_seq *group_list(const struct value *param_shapes,
					  struct value_seq *single, struct value **slot)
{
	const struct value_seq *list = value_items(param_shapes);

	if (list || !value_pairs(param_shapes))
		return list;
	/* Before October 2021 param_shapes was one dict, for the only group. */
	*slot = (struct value *)param_shapes;
	*single = (struct value_seq){ .v = slot, .n = 1 };
	return single;
}

static int load_groups(const struct rank_params_loader *l)
{
	const struct value *v = value_find(l->pt->root, "param_shapes");
	struct rank_params *c = l->c;
	struct value_seq single;
	struct value *slot;
	const struct value_seq *list = group_list(v, &single, &slot);
	size_t total = 0;
	int rc = 0;

	if (!list && value_pairs(value_find(l->pt->root, "optimizer")))
		return ERRMSG_FILE(l, -EBADMSG, "saved without ZeRO: the optimizer shards beside"
				" it (%s, ...) are of a former save; remove them to have this one",
				   l->dir->optim[0].name);
	if (!list)
		return ERRMSG_FILE(l, -EBADMSG,
				   "has no param_shapes: not the model states of a ZeRO run");
	if (list->n > RANK_PARAMS_GROUPS_MAX)
		return ERRMSG_FILE(l, -E2BIG, "%zu parameter groups", list->n);
	for (size_t g = 0; g < list->n; g++) {
		const struct value_dict *d = value_pairs(list->v[g]);

		if (!d)
			return ERRMSG_FILE(l, -EBADMSG, "param_shapes[%zu] is a %s", g,
					   value_kind_name(list->v[g]));
		total += d->n;
	}
	if (total > RANK_PARAMS_MAX)
		return ERRMSG_FILE(l, -E2BIG, "%zu parameters", total);
	c->groups = arena_alloc(&c->arena, (list->n + 1) * sizeof(*c->groups));
	if (!c->groups)
		return errmsg_nomem(l->err, l->file);
	c->ngroups = list->n;
	for (size_t g = 0; !rc && g < list->n; g++)
		rc = load_group(l, value_pairs(list->v[g]), (uint32_t)g);
	return rc;
}

static int sort_slices(const struct rank_params_loader *l)
{
	struct rank_params *c = l->c;

	if (c->nslices)
		qsort(c->slices, c->nslices, sizeof(*c->slices), array_by_text);
	for (size_t i = 0; i + 1 < c->nslices; i++)
		if (strcmp(c->slices[i].name, c->slices[i + 1].name) == 0)
			return ERRMSG_FILE(l, -EBADMSG, "param_shapes: %s occurs twice",
					   c->slices[i].name);
	return 0;
}

static int load_rules(const struct rank_params_loader *l)
{
	const struct value *info = value_find(l->pt->root, KEY_UC_INFO);

	l->c->facts.has_uc_info = value_pairs(info) != NULL;
	return merge_rules_new(info, l->file, &l->c->rules, l->err);
}

static int64_t find_int(const struct value *v, const char *key)
{
	int64_t i;

	return value_get_int(value_find(v, key), &i) ? i : -1;
}

static int load_metadata(const struct rank_params_loader *l)
{
	const struct value *root = l->pt->root;
	const struct value *version = value_find(root, KEY_DS_VERSION);
	const struct value *zero = value_find_path(root, KEY_DS_CONFIG, "zero_optimization", NULL);
	const struct value *frozen = value_find(root, KEY_FROZEN_SHAPES);
	const struct value *degrees = value_find(root, "checkpoint_parallel_dimensions");
	struct rank_params *c = l->c;

	c->facts.stage = find_int(zero, "stage");
	c->facts.global_steps = find_int(root, "global_steps");
	c->facts.skipped_steps = find_int(root, "skipped_steps");
	c->dp_world_size = find_int(root, "dp_world_size");
	c->mp_world_size = find_int(root, "mp_world_size");
	c->tp_degree = find_int(degrees, "tp_degree");
	c->pp_degree = find_int(degrees, "pp_degree");
	c->facts.module_dtype = DTYPE_OTHER;
	c->facts.has_frozen = value_find_pairs(root, KEY_FROZEN_SHAPES) != NULL;
	/* Stage 1 and others have None in either case (engine.py, _save_checkpoint). */
	c->facts.excludes_frozen = frozen && frozen->kind == VALUE_NONE &&
				   (c->facts.stage >= 2 || c->facts.zero3);
	c->facts.round_robin = value_is_true(value_find(zero, "round_robin_gradients"));
	c->zenflow = value_pairs(value_find(zero, "zenflow")) != NULL;
	c->facts.ds_version = arena_strdup(&c->arena, value_is_cstr(version) ? version->str.p : "");
	return c->arena.failed ? errmsg_nomem(l->err, l->file) : 0;
}

/* Fill in the groups' lists of parameters; the slices stay where they are. */
static void list_groups(struct rank_params *c)
{
	for (size_t i = 0; i < c->nslices; i++) {
		const struct slice *p = &c->slices[i];
		const struct slice_group *g = &c->groups[p->group];

		assert(p->index < g->n && !g->slices[p->index]);
		g->slices[p->index] = p;
	}
}

/* The type in which the model computes: that of the module's first tensor of an optimizer
 * parameter. */
static void find_module_dtype(const struct rank_params_loader *l)
{
	const struct value_dict *module = l->module;

	for (size_t i = 0; module && i < module->n; i++) {
		const struct value *name = module->v[i].key;
		struct tensor t;

		if (!value_is_cstr(name) || !tensor_is(module->v[i].val) ||
		    !slice_find(l->c->slices, l->c->nslices, name->str.p) ||
		    tensor_from_value(module->v[i].val, "module", &t, NULL))
			continue;
		l->c->facts.module_dtype = t.dtype;
		break;
	}
}

static int rank_params_load_rank(struct rank_params_loader *l)
{
	int rc;

	if (!value_pairs(l->pt->root))
		return ERRMSG_FILE(l, -EBADMSG, "expected a dict, found %s",
				   value_kind_name(l->pt->root));
	rc = module_dict(l->pt->root, l->file, &l->c->arena, &l->module, l->err) ?:
	     load_metadata(l) ?:
	     load_groups(l) ?:
	     sort_slices(l);
	if (rc)
		return rc;
	l->c->facts.is_pipeline = !l->module;
	list_groups(l->c);
	find_module_dtype(l);
	rc = l->c->facts.zero3 ? 0 : rank_params_load_module(l);
	if (!rc)
		rc = experts_init(&l->c->experts, &l->c->arena, l->pt->root, l->c->facts.zero3,
				  l->file, l->err);
	return rc ?: load_rules(l);
}

int rank_params_load(struct rank_params *c, const struct zero_dir *dir, unsigned mp,
		     const struct rank_object *object, struct errmsg *err)
{
	const struct ckpt_file *f = &dir->model[zero_dir_model_number(dir, mp)];
	struct rank_params_loader l = { .c = c, .file = f->path, .dir = dir, .err = err };
	struct ptfile pt;
	int rc;

	*c = (struct rank_params){ .facts.zero3 = dir->zero3, .mp = mp };
	rc = ckpt_file_open(f, &pt, err);
	if (rc)
		return rc;
	l.pt = &pt;
	if (object)
		pt.root = object->make(object->ctx, mp, &pt);
	rc = pt.root ? rank_params_load_rank(&l) : errmsg_nomem(err, f->path);
	ptfile_close(&pt);
	if (rc)
		rank_params_done(c);
	return rc;
}

void rank_params_done(struct rank_params *c)
{
	merge_rules_free(c->rules);
	arena_done(&c->arena);
	*c = (struct rank_params){ 0 };
}
