/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed numbers parameters as it partitions them (partition_parameters.py,
 * Init.param_id), mostly in the order of the module's state dict.  The numbers in
 * the files must confirm that order; otherwise no number is made up.
 */
#include "ckpt/reshard/reshard_ids.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "ckpt/tensor/tensor.h"
#include "ckpt/zero/checkpoint.h"

struct named_id {
	const char *name; /* first: array_by_text */
	int64_t id;
};

struct id_table {
	struct named_id *v; /* sorted by name once complete */
	size_t n;
};

/* buffer_names is a list, or until 0.16 a set. */
static const struct value_seq *buffer_names(const struct value *root)
{
	const struct value *v = value_find(root, "buffer_names");

	if (v && v->kind == VALUE_REDUCE && v->obj->args->kind == VALUE_TUPLE &&
	    v->obj->args->seq.n == 1)
		v = v->obj->args->seq.v[0];
	return value_items(v);
}

bool reshard_is_buffer(const struct value *root, const char *name)
{
	const struct value_seq *const buffers = buffer_names(root);

	for (size_t i = 0; buffers && i < buffers->n; i++)
		if (value_is_str(buffers->v[i], name))
			return true;
	return false;
}

/* Number the parameters of the module. */
static int number_module(const struct value *root, struct id_table *t)
{
	const struct value_dict *const module =
		value_pairs(value_find(root, "module"));
	const struct value *const shared = value_find(root, KEY_SHARED_PARAMS);

	t->v = calloc((module ? module->n : 0) + 1, sizeof(*t->v));
	if (!t->v)
		return -ENOMEM;
	for (size_t i = 0; module && i < module->n; i++) {
		const struct value *const key = module->v[i].key;

		if (!value_is_cstr(key) || !tensor_is(module->v[i].val) ||
		    reshard_is_buffer(root, key->str.p) ||
		    value_find(shared, key->str.p))
			continue;
		t->v[t->n] = (struct named_id){ key->str.p, (int64_t)t->n };
		t->n++;
	}
	qsort(t->v, t->n, sizeof(*t->v), array_by_text);
	return 0;
}

static int64_t find_id(const struct id_table *t, const char *name)
{
	const struct named_id *const found =
		array_find(t->v, t->n, sizeof(*t->v), name);

	return found ? found->id : -1;
}

/* List the numbers in the order of param_shapes; false if a parameter has none. */
static bool list_ids(const struct value *root, const struct id_table *t,
		     int64_t *ids, size_t *start)
{
	const struct value_seq *const groups =
		value_items(value_find(root, "param_shapes"));
	size_t k = 0;

	for (size_t g = 0; groups && g < groups->n; g++) {
		const struct value_dict *const d = value_pairs(groups->v[g]);

		start[g] = k;
		for (size_t i = 0; i < d->n; i++) {
			ids[k] = find_id(t, d->v[i].key->str.p);
			if (ids[k++] < 0)
				return false;
		}
	}
	return groups != NULL;
}

/* Do the master weights carry these numbers? */
static bool agree(const struct value *root, const struct rank_params *c,
		  const int64_t *ids, const size_t *start)
{
	const struct value_seq *const flat = value_items(value_find_path(
		root, KEY_OPTIMIZER_STATE_DICT, KEY_FP32_FLAT_GROUPS, NULL));

	for (size_t g = 0; flat && g < flat->n && g < c->ngroups; g++) {
		const size_t n = c->groups[g].param_shapes_count;
		char text[64];

		if (!n)
			continue;
		snprintf(text, sizeof(text), "%" PRId64 "_%" PRId64,
			 ids[start[g]], ids[start[g] + n - 1]);
		if (!value_is_str(tensor_attribute(flat->v[g], "ds_id"), text))
			return false;
	}
	return true;
}

static int check_optimizer(const struct zero_checkpoint *r, unsigned mp,
			   const int64_t *ids, const size_t *start, bool *ok,
			   struct errmsg *err)
{
	struct ptfile pt;
	const int rc = tagdir_open_file(
		&r->dir.optim[zckpt_shard_number(r, mp, 0)], &pt, err);

	if (rc)
		return rc;
	*ok = agree(pt.root, &r->model.ranks[mp], ids, start);
	ptfile_close(&pt);
	return 0;
}

int reshard_find_ids(const struct zero_checkpoint *r, unsigned mp,
		     int64_t **ids, size_t **start, struct errmsg *err)
{
	const struct rank_params *const c = &r->model.ranks[mp];
	const struct tag_file *const f =
		&r->dir.model[(size_t)mp * (r->dir.zero3 ? r->dir.dp_degree : 1)];
	struct id_table t = { 0 };
	struct ptfile pt;
	size_t total = 0;
	bool ok = false;
	int rc = tagdir_open_file(f, &pt, err);

	if (rc)
		return rc;
	for (size_t g = 0; g < c->ngroups; g++)
		total += c->groups[g].param_shapes_count;
	*ids = calloc(total + 1, sizeof(**ids));
	*start = calloc(c->ngroups + 1, sizeof(**start));
	if (!*ids || !*start || number_module(pt.root, &t))
		rc = errmsg_nomem(err, f->path);
	else
		ok = list_ids(pt.root, &t, *ids, *start);
	ptfile_close(&pt);
	free(t.v);
	if (!rc && ok)
		rc = check_optimizer(r, mp, *ids, *start, &ok, err);
	if (rc || !ok) {
		free(*ids);
		free(*start);
		*ids = NULL;
		*start = NULL;
	}
	return rc;
}
