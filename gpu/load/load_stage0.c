/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint without ZeRO as a source: everything is in the model states, of
 * which there is a file of each part of the model.
 * Optimizer states are numbered by the parameter's position in the module; a
 * 16-bit model has its masters in fp32_groups.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "ckpt/dirs/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "gpu/load/load_impl.h"
#include "gpu/load/load_tensor.h"

#define FILE_NAME "%s/mp_rank_%02u_model_states.pt"

struct stage0_source {
	struct load_source s;
	char path[PATH_MAX];
	struct ptfile pt;
	const struct value *optimizer;
	const struct value_dict *module;
};

struct stage0_tensor {
	struct load_tensor t;
	uint64_t at; /* of its first element in the file */
};

static struct stage0_source *load_stage0_of(struct load_source *s)
{
	return (struct stage0_source *)s;
}

static struct stage0_tensor *stage0_tensor_of(struct load_tensor *t)
{
	return (struct stage0_tensor *)t;
}

/* The position of a parameter among the module's parameters. */
static int64_t number_of(const struct stage0_source *w, const char *param)
{
	for (size_t i = 0; i < w->module->n; i++)
		if (value_is_str(w->module->v[i].key, param))
			return (int64_t)i;
	return -1;
}

static const struct value *find_index(const struct value *dict, int64_t key)
{
	const struct value_dict *d = value_pairs(dict);

	for (size_t i = 0; d && i < d->n; i++)
		if (d->v[i].key->kind == VALUE_INT && d->v[i].key->i == key)
			return d->v[i].val;
	return NULL;
}

/* The i-th tensor of the first parameter group. */
static const struct value *find_master(const struct value *groups, int64_t i)
{
	const struct value_seq *of_groups = value_items(groups);
	const struct value_seq *group =
		of_groups && of_groups->n ? value_items(of_groups->v[0]) : NULL;

	return group && (uint64_t)i < group->n ? group->v[i] : NULL;
}

static int find_stage0(const struct stage0_source *w, const char *param,
		       const char *state, const struct value **out,
		       struct errmsg *err)
{
	const struct value *inner =
		value_find(w->optimizer, KEY_OPTIMIZER_STATE_DICT);
	const struct value *masters = value_find(w->optimizer, "fp32_groups");
	const int64_t i = number_of(w, param);
	const struct value *v = NULL;

	if (!inner)
		inner = w->optimizer;
	if (i >= 0 && state)
		v = value_find(find_index(value_find(inner, "state"), i), state);
	else if (i >= 0)
		v = masters ? find_master(masters, i) : w->module->v[i].val;
	if (!v)
		return errmsg_set(err, -ENOENT, "%s: has no %s of %s", w->path,
				  state ? state : "parameter", param);
	*out = v;
	return 0;
}

static int load_stage0_begin(struct load_tensor *t, const char *param,
			     const char *state, struct errmsg *err)
{
	const struct stage0_source *w = load_stage0_of(t->s);
	const struct value *v;
	const int rc = find_stage0(w, param, state, &v, err);

	return rc ? rc
		  : load_tensor_at(&w->pt, v, param, &t->tensor,
				   &stage0_tensor_of(t)->at, err);
}

static int load_stage0_find(struct load_tensor *t, uint64_t first, size_t n,
			    float *to, struct load_runs *runs,
			    struct errmsg *err)
{
	const size_t size = dtype_size(t->tensor.dtype);
	struct load_run *const run = load_runs_add(runs);

	assert(first + n <= t->tensor.numel);
	if (!run)
		return errmsg_nomem(err, NULL);
	*run = (struct load_run){
		.file = load_stage0_of(t->s)->pt.src,
		.off = stage0_tensor_of(t)->at + first * size,
		.len = n * size,
		.to = to,
	};
	return 0;
}

static void load_stage0_end(struct load_tensor *t)
{
	(void)t;
}

/* Names that share another parameter's storage are skipped: the optimizer has
 * no state for them. */
static int load_stage0_check(struct load_source *s, struct errmsg *err)
{
	const struct stage0_source *w = load_stage0_of(s);
	const struct value *v;
	int rc = 0;

	for (size_t i = 0; i < w->module->n && !rc; i++) {
		const char *name = w->module->v[i].key->str.p;

		if (find_stage0(w, name, "exp_avg", &v, NULL) == 0)
			rc = load_known(s, name, err);
	}
	return rc;
}

static void load_stage0_close_source(struct load_source *s)
{
	ptfile_close(&load_stage0_of(s)->pt);
}

/* Was the checkpoint saved in as many parts of the model as this run has? */
static int check_ranks(const struct stage0_source *w, struct errmsg *err)
{
	const struct gpt2_part *const part = &w->s.model->part;
	const int64_t mine = part->size * part->stages;
	int64_t saved = 1;

	value_get_int(value_find(w->pt.root, "mp_world_size"), &saved);
	if (saved == mine)
		return 0;
	return errmsg_set(
		err, -EINVAL,
		"%s: was saved without ZeRO in %lld parts of the model, and this run has %lld",
		w->s.path, (long long)saved, (long long)mine);
}

static int load_stage0_open_source(struct load_source *s, struct errmsg *err)
{
	struct stage0_source *w = load_stage0_of(s);
	const struct gpt2_part *const part = &s->model->part;
	const struct value *module;
	int rc;

	s->cut = true;
	if (snprintf(w->path, sizeof(w->path), FILE_NAME, s->path,
		     part->stage * part->size + part->rank) >=
	    (int)sizeof(w->path))
		return errmsg_set(err, -ENAMETOOLONG, "%s: name too long",
				  s->path);
	rc = ptfile_open(&w->pt, w->path, err);
	if (rc)
		return rc;
	w->optimizer = value_find(w->pt.root, "optimizer");
	module = value_find(w->pt.root, "module");
	w->module = value_pairs(module);
	if (value_pairs(w->optimizer) && w->module) {
		for (size_t i = 0; i < w->module->n; i++)
			if (!value_is_cstr(w->module->v[i].key))
				rc = -EBADMSG;
	} else {
		rc = -EBADMSG;
	}
	if (rc)
		errmsg_set(err, rc, "%s: no optimizer or no module", w->path);
	else
		rc = check_ranks(w, err);
	if (rc)
		ptfile_close(&w->pt);
	return rc;
}

const struct load_ops load_stage0_ops = {
	.size = sizeof(struct stage0_source),
	.tensor_size = sizeof(struct stage0_tensor),
	.open = load_stage0_open_source,
	.begin = load_stage0_begin,
	.find = load_stage0_find,
	.end = load_stage0_end,
	.check = load_stage0_check,
	.close = load_stage0_close_source,
};
