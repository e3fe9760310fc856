/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The universal tree of a ZeRO tag.  Names, sizes and contents are derived from the
 * model on demand, so the memory of a tree is that of the model, and of the records of
 * files that were opened.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/plan/plan_impl.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/weights/weights.h"
#include "ckpt/zero/checkpoint.h"

_Static_assert(SHARD_STATES_MAX + 1 <= UC_FILE_SLOTS, "states fit the slots");

struct plan_universal {
	struct plan plan;
	struct zero_checkpoint r;
	struct weights *weights; /* NULL until they are needed */
};

enum { ROOT, ZERO, MODEL, OPTIMIZER, PARAM, STATE };

static struct plan_universal *universal_of(struct plan *p)
{
	return (struct plan_universal *)p;
}

/* The number of names under which engines of other stages look for model states. */
static size_t naliases(const struct plan *p)
{
	return p->options.any_stage ? p->zckpt->dir.mp_degree : 0;
}

static int name_model(const struct plan_item *e, char out[NAME_MAX + 1])
{
	const struct tagdir *const d = &e->p->zckpt->dir;

	if (e->i < d->nmodel)
		return plan_set_name(out, d->model[e->i].name, "");
	snprintf(out, NAME_MAX + 1, "%smp_rank_%02u_model_states.pt",
		 d->zero3 ? "" : "zero_pp_rank_0_",
		 (unsigned)(e->i - d->nmodel));
	return 1;
}

static void describe_model(const struct plan_item *e, struct plan_facts *out)
{
	const struct tagdir *const d = &e->p->zckpt->dir;
	const size_t n =
		e->i < d->nmodel
			? e->i
			: tagdir_model_number(d, (unsigned)(e->i - d->nmodel));

	plan_describe_copy(e->p, &d->model[n], d->noptim + n, out);
}

/* Its pickle has objects of the optimizer shards. */
static void describe_optimizer(const struct plan_item *e, struct plan_facts *out)
{
	out->readers = &e->p->readers;
}

static int lay_out_optimizer(const struct plan_item *e, bool extents,
			     struct uc_file *out)
{
	(void)extents;
	return uc_file_of_optimizer(e->p->zckpt, out, e->err);
}

static int name_param(const struct plan_item *e, char out[NAME_MAX + 1])
{
	return plan_set_name(out, e->p->zckpt->model.params[e->i].name, "");
}

static int64_t find_param(struct plan *p, unsigned group, const char *name)
{
	const struct model *const m = &p->zckpt->model;
	const struct param *const param = model_find(m, name);

	(void)group;
	return param ? param - m->params : -1;
}

/* A parameter's states are those of its group.  A parameter that the optimizer does
 * not own has no group. */
static int name_state(const struct plan_item *e, char out[NAME_MAX + 1])
{
	struct zero_checkpoint *const r = e->p->zckpt;
	const struct param *const param = &r->model.params[e->dir];
	const struct shard_group *group = NULL;
	const char *name;
	const int rc = param->module ? 0 : zckpt_group(r, param, &group, e->err);

	if (rc)
		return rc;
	name = uc_file_name(r, group, param, (unsigned)e->k);
	return name ? plan_set_name(out, name, ".pt") : 0;
}

static int lay_out_state(const struct plan_item *e, bool extents,
			 struct uc_file *out)
{
	struct zero_checkpoint *const r = e->p->zckpt;

	return uc_file_of_param(r, &r->model.params[e->dir], (unsigned)e->k,
				extents, out, e->err);
}

int plan_universal_weights(struct plan *p, const struct weights **out,
			   struct errmsg *err)
{
	struct plan_universal *const u = universal_of(p);
	struct weights *w = u->weights;
	int rc;

	if (!w) {
		w = malloc(sizeof(*w));
		if (!w)
			return errmsg_nomem(err, u->r.dir.path);
		rc = weights_load(w, &u->r, p->shards, err);
		if (rc) {
			free(w);
			return rc;
		}
		u->weights = w;
	}
	*out = w;
	return 0;
}

static int universal_check(struct plan *p, struct errmsg *err)
{
	struct zero_checkpoint *const r = p->zckpt;
	int rc = zckpt_profiles(r, err);

	for (size_t i = 0; !rc && i < r->model.nparams; i++)
		rc = uc_file_check_param(r, &r->model.params[i], err);
	return rc;
}

static void universal_warm(struct plan *p)
{
	struct zero_checkpoint *const r = p->zckpt;
	const struct tagdir *const d = &r->dir;
	uint32_t shards[PLAN_WARM_SHARDS];
	uint64_t size;
	size_t n = 0;

	if (!far_is_suspect(&r->far))
		return;
	for (; n < PLAN_WARM_SHARDS && n < tagdir_count(d); n++)
		shards[n] = (uint32_t)n;
	for (unsigned mp = 0; mp < d->mp_degree && mp * d->dp_degree < n; mp++) {
		const size_t left = n - mp * d->dp_degree;

		zckpt_load_shards(r, mp, 0,
				  left < d->dp_degree ? (unsigned)left
						      : d->dp_degree,
				  1, NULL);
	}
	plan_file_size(p, OPTIMIZER, 0, &size, NULL);
	shardcache_suppose(p->shards, &r->far);
	shardcache_check_files(p->shards, shards, n, NULL);
}

static int universal_describe(struct plan *p, size_t i, struct bytebuf *out,
			      struct errmsg *err)
{
	const struct param *const x = &p->zckpt->model.params[i];
	const struct shard_group *group;
	char text[32];
	int rc;

	if (x->module) {
		plan_add_tensor(out, x->shape, x->ndim, "module",
				x->module->dtype);
		return 0;
	}
	rc = zckpt_group(p->zckpt, x, &group, err);
	if (rc)
		return rc;
	plan_add_tensor(out, x->shape, x->ndim, merge_rule_name(x->merge.rule),
			group->fp32.dtype);
	snprintf(text, sizeof(text), ",\"group\":%u", x->first->group);
	bytebuf_add_str(out, text);
	return 0;
}

static void universal_close(struct plan *p)
{
	struct plan_universal *const u = universal_of(p);

	if (u->weights)
		weights_done(u->weights);
	free(u->weights);
	shardcache_free(p->shards);
	if (p->zckpt)
		zckpt_done(p->zckpt);
}

static int universal_make(struct plan *p, const char *path, struct errmsg *err)
{
	static const char *const zero[] = { "zero" };
	static const char *const optimizer[] = { "optimizer_state.pt" };
	struct zero_checkpoint *const r = &universal_of(p)->r;
	const int rc = zckpt_init(r, path, p->options.rules, err);

	if (rc)
		return rc;
	r->any_stage = p->options.any_stage;
	p->zckpt = r;
	p->tag = r->dir.tag;
	p->readers = r->dir.access;
	p->names = r->dir.names;
	p->st = r->dir.st;
	p->mtime_s = r->dir.optim[0].mtime_s;
	p->shards = zckpt_shards(&r->dir);
	if (!p->shards)
		return errmsg_nomem(err, path);

	const struct plan_group groups[] = {
		{ .dir = ROOT, .is_dir = true, .n = 1, .names = zero },
		{ .dir = ROOT,
		  .n = r->dir.nmodel + naliases(p),
		  .name = name_model,
		  .describe = describe_model },
		{ .dir = ZERO,
		  .n = 1,
		  .names = optimizer,
		  .describe = describe_optimizer,
		  .lay_out = lay_out_optimizer },
		{ .dir = ZERO,
		  .is_dir = true,
		  .n = r->model.nparams,
		  .name = name_param,
		  .find = find_param },
		{ .dir = PARAM,
		  .n = UC_FILE_SLOTS,
		  .name = name_state,
		  .lay_out = lay_out_state },
	};

	plan_set_groups(p, groups, COUNT(groups));
	return 0;
}

const struct plan_view plan_universal = {
	.size = sizeof(struct plan_universal),
	.make = universal_make,
	.close = universal_close,
	.check = universal_check,
	.warm = universal_warm,
	.warning = plan_universal_warning,
	.describe = universal_describe,
};
