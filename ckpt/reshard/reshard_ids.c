/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed numbers parameters as it partitions them (partition_parameters.py,
 * Init.param_id), mostly in the order of the module's state dict.  The numbers in
 * the files must confirm that order; otherwise no number is made up.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "ckpt/dirs/tagdir.h"
#include "ckpt/reshard/reshard_impl.h"

/* Number the parameters of the module: `index` of each name. */
static void number_module(const struct value *root, struct arena *a,
			  struct reshard_names *out)
{
	const struct value_dict *const module = value_find_pairs(root, "module");
	struct reshard_entries e;

	out->v = arena_alloc(a,
			     ((module ? module->n : 0) + 1) * sizeof(*out->v));
	reshard_entries_init(&e, a, root);
	for (size_t i = 0; module && i < module->n && !a->failed; i++) {
		const struct value *const key = module->v[i].key;

		if (!value_is_cstr(key) || !tensor_is(module->v[i].val) ||
		    reshard_names_find(&e.buffers, key->str.p) ||
		    reshard_names_find(&e.shared, key->str.p))
			continue;
		out->v[out->n] =
			(struct reshard_name){ .name = key->str.p,
					       .index = (uint32_t)out->n };
		out->n++;
	}
	reshard_names_sort(out);
}

/* List the numbers in the order of param_shapes; false if a parameter has none, or the file
 * is no longer the one that `c` was read from. */
static bool list_ids(const struct value *root, const struct rank_params *c,
		     const struct reshard_names *t, int64_t *ids, size_t *start)
{
	const struct value_seq *const groups =
		value_items(value_find(root, "param_shapes"));
	size_t k = 0;

	if (!groups || groups->n != c->ngroups)
		return false;
	for (size_t g = 0; g < groups->n; g++) {
		const struct value_dict *const d = value_pairs(groups->v[g]);

		if (!d || d->n != c->groups[g].n)
			return false;
		start[g] = k;
		for (size_t i = 0; i < d->n; i++) {
			const struct reshard_name *const found =
				reshard_names_find(t, value_cstr(d->v[i].key));

			if (!found)
				return false;
			ids[k++] = found->index;
		}
	}
	return true;
}

/* Do the master weights carry these numbers? */
static bool agree(const struct value *root, const struct rank_params *c,
		  const int64_t *ids, const size_t *start)
{
	const struct value_seq *const flat = value_items(value_find_path(
		root, KEY_OPTIMIZER_STATE_DICT, KEY_FP32_FLAT_GROUPS, NULL));

	for (size_t g = 0; flat && g < flat->n && g < c->ngroups; g++) {
		const size_t n = c->groups[g].n;
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

int reshard_find_ids(struct resharder *b)
{
	const struct tagdir *const d = &b->s->r->dir;
	const struct tag_file *const f =
		&d->model[tagdir_model_number(d, b->mp)];
	struct reshard_names names = { 0 };
	struct arena a = { 0 };
	struct ptfile pt;
	size_t *start, total = 0;
	int64_t *ids;
	int rc = tagdir_open_file(f, &pt, b->err);

	if (rc)
		return rc;
	for (size_t g = 0; g < b->c->ngroups; g++)
		total += b->c->groups[g].n;
	ids = reshard_alloc(b, total, sizeof(*ids));
	start = reshard_alloc(b, b->c->ngroups, sizeof(*start));
	number_module(pt.root, &a, &names);
	if (!ids || !start || a.failed) {
		rc = errmsg_nomem(b->err, f->path);
	} else if (list_ids(pt.root, b->c, &names, ids, start) &&
		   agree(b->root, b->c, ids, start)) {
		b->m->ids = ids;
		b->m->ids_start = start;
	}
	arena_done(&a);
	ptfile_close(&pt);
	return rc;
}
