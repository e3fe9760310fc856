/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lays out zero/optimizer_state.pt: what the optimizer of rank 0 keeps besides
 * its states, as DeepSpeed 0.19.8 writes it (ds_to_universal.py
 * _save_optimizer_state, _save_optimizer_state_stage3; zero_checkpoint.py
 * _clear_group_paddings, _update_partition_count).
 *
 *   stages 1, 2	the shard's dict without the sharded states; paddings
 *			cleared; partition counts set; param_groups at the end
 *   stage 3		the whole dict with flat tensors; param_groups at the
 *			end
 *   any stage		that of stages 1 and 2, and for stage 3's loader
 *			optimizer_state_dict: {state: {0: {step}}, param_groups}
 *
 * Objects of any class are written as they were read.
 */
#include "ckpt/plan/uc_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/pickle/value.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/zero/shard.h"

#define PREFIX "optimizer_state"

static bool is_sharded(const struct value *key)
{
	static const char *const keys[] = {
		KEY_BASE_OPTIMIZER_STATE, KEY_PARAM_SLICE_MAPPINGS,
		KEY_FP32_GROUPS,          KEY_FP32_FLAT_GROUPS,
		KEY_OPTIMIZER_STATE_DICT,
	};

	for (size_t i = 0; i < COUNT(keys); i++)
		if (value_is_str(key, keys[i]))
			return true;
	return false;
}

/* A new list as long as `like` in which every item is the number `i`. */
static struct value *list_of_int(struct arena *a, const struct value *like,
				 int64_t i)
{
	const struct value_seq *const items = value_items(like);
	struct value *const list = value_new(a, VALUE_LIST);
	bool ok = list;

	for (size_t k = 0; ok && k < items->n; k++)
		ok = value_seq_add(a, &list->seq, value_new_int(a, i));
	return ok ? list : NULL;
}

static struct value *replaced(struct arena *a, const struct value *key,
			      struct value *v, unsigned ranks)
{
	const struct value_seq *const items = value_items(v);

	if (!items || items->n == 0)
		return v;
	if (value_is_str(key, KEY_GROUP_PADDINGS))
		return list_of_int(a, v, 0);
	if (value_is_str(key, KEY_PARTITION_COUNT))
		return list_of_int(a, v, ranks);
	return v;
}

struct value *uc_file_empty_groups(struct arena *a, size_t n)
{
	struct value *const list = value_new(a, VALUE_LIST);
	bool ok = list;

	for (size_t g = 0; ok && g < n; g++)
		ok = value_seq_add(a, &list->seq, value_new(a, VALUE_DICT));
	return ok ? list : NULL;
}

/* The step, from the first group; NULL if there is none. */
static struct value *find_step(const struct zero_checkpoint *r,
			       const struct value *dict)
{
	const struct value *const base = value_find(
		dict, r->model.ranks[0].zero3 ? KEY_OPTIMIZER_STATE_DICT
					      : KEY_BASE_OPTIMIZER_STATE);
	const struct value *const first =
		value_item(base, 0)
			?: shard_find_group_state(value_find(base, "state"), 0);

	return value_find(first, "step");
}

struct value *uc_file_stage3_state(struct arena *a, struct value *step,
				   struct value *groups)
{
	struct value *const out = value_new(a, VALUE_DICT);
	struct value *const state = value_new(a, VALUE_DICT);
	struct value *const first = value_new(a, VALUE_DICT);

	return state && (!step || value_dict_set(a, first, "step", step)) &&
			       value_dict_add(a, &state->dict,
					      value_new_int(a, 0), first) &&
			       value_dict_set(a, out, "state", state) &&
			       value_dict_set(a, out, KEY_PARAM_GROUPS, groups)
		       ? out
		       : NULL;
}

/* The learning rate, if all groups have the same; else NULL. */
static struct value *common_lr(const struct value_seq *groups)
{
	struct value *lr = NULL;

	for (size_t i = 0; groups && i < groups->n; i++) {
		struct value *const own = value_find(groups->v[i], "lr");

		if (!own || own->kind != VALUE_FLOAT || (lr && own->f != lr->f))
			return NULL;
		lr = own;
	}
	return lr;
}

/*
 * The groups of stage 3, followed by others that have only their learning rate,
 * which a schedule has changed since the program set it.  A program may make fewer
 * groups in stage 3 than in the others: Megatron-DeepSpeed tells weights from
 * biases by their dimensions, and under zero.Init all of them have one.
 */
static struct value *add_groups(struct arena *a, const struct value *groups)
{
	const struct value_seq *const from = value_items(groups);
	struct value *const lr = common_lr(from);
	struct value *const all = value_new(a, VALUE_LIST);
	bool ok = all;

	for (size_t i = 0; ok && from && i < from->n; i++)
		ok = value_seq_add(a, &all->seq, from->v[i]);
	while (ok && all->seq.n < UC_FILE_GROUPS) {
		struct value *const group = value_new(a, VALUE_DICT);

		ok = (!lr || value_dict_set(a, group, "lr", lr)) &&
		     value_seq_add(a, &all->seq, group);
	}
	return ok ? all : NULL;
}

static struct value *build_root(const struct zero_checkpoint *r,
				struct arena *a, const struct value *dict,
				const struct value *version)
{
	const bool zero3 = r->model.ranks[0].zero3;
	const struct value_dict *const from = value_pairs(dict);
	struct value *const root = value_new(a, VALUE_DICT);
	struct value *groups = value_find_path(dict,
					       zero3 ? KEY_OPTIMIZER_STATE_DICT
						     : KEY_BASE_OPTIMIZER_STATE,
					       KEY_PARAM_GROUPS, NULL);
	bool ok = root;

	for (size_t i = 0; ok && i < from->n; i++) {
		const struct value_pair *const p = &from->v[i];

		if (zero3 && !r->any_stage)
			ok = value_dict_add(a, &root->dict, p->key, p->val);
		else if (!is_sharded(p->key))
			ok = value_dict_add(
				a, &root->dict, p->key,
				replaced(a, p->key, p->val, r->dir.dp_degree));
	}
	/* An elastic checkpoint records no param_groups.  The loader walks saved
	 * and own groups together: empty ones make it load every group. */
	if (!groups)
		groups = uc_file_empty_groups(a, r->model.ranks[0].ngroups);
	if (r->any_stage)
		ok = ok &&
		     value_dict_set(a, root, KEY_OPTIMIZER_STATE_DICT,
				    uc_file_stage3_state(a, find_step(r, dict),
							 groups));
	/* Stages 1 and 2 read the version here; stage 3 has it one level up. */
	if (ok && r->any_stage && zero3 && version &&
	    !value_find(root, KEY_DS_VERSION))
		ok = value_dict_set(a, root, KEY_DS_VERSION,
				    (struct value *)version);
	if (r->any_stage && zero3)
		groups = add_groups(a, groups);
	ok = ok && value_dict_set(a, root, KEY_PARAM_GROUPS, groups);
	return ok ? root : NULL;
}

/* pickle_dump, with messages that name the shard. */
static int dump(const struct ptfile *pt, const struct value *root,
		struct bytebuf *pickle, struct pickle_storages *s,
		struct errmsg *err)
{
	struct errmsg why = { "" };
	const int rc = pickle_dump(root, pickle, s, &why);

	return rc ? errmsg_set(err, rc, "%s: %s", pt->src.name, why.text) : 0;
}

/* Locate the pickle's storages in the shard. */
static int map_storages(const struct ptfile *pt,
			const struct pickle_storages *s, struct extent_map *out,
			uint64_t *len, struct errmsg *err)
{
	for (size_t i = 0; i < s->n; i++) {
		enum dtype dtype;
		const char *key;
		uint64_t numel, at;
		int rc;

		rc = tensor_storage(s->pid[i], pt->src.name, &dtype, &key,
				    &numel, err);
		if (rc)
			return rc;
		if (numel > INT64_MAX / 16)
			return errmsg_set(
				err, -EBADMSG, "%s: storage of %llu elements",
				pt->src.name, (unsigned long long)numel);
		len[i] = numel * dtype_size(dtype);
		rc = ptfile_storage(pt, key, len[i], &at, err);
		if (rc)
			return rc;
		if (!extent_add(&out[i], EXTENT_SHARD, len[i], 0, at, dtype))
			return errmsg_nomem(err, pt->src.name);
	}
	return 0;
}

static int uc_file_optimizer_build(const struct zero_checkpoint *r,
				   const struct ptfile *pt, struct uc_file *out,
				   struct errmsg *err)
{
	const struct value *const dict =
		value_find(pt->root, KEY_OPTIMIZER_STATE_DICT);
	struct pickle_storages s = { 0 };
	struct bytebuf pickle = { 0 };
	struct arena a = { 0 };
	struct value *const root =
		build_root(r, &a, dict, value_find(pt->root, KEY_DS_VERSION));
	uint64_t *len = NULL;
	int rc = root ? dump(pt, root, &pickle, &s, err) : -ENOMEM;

	if (!rc) {
		out->storages = calloc(s.n + 1, sizeof(*out->storages));
		out->nstorages = s.n;
		len = calloc(s.n + 1, sizeof(*len));
		rc = out->storages && len
			     ? map_storages(pt, &s, out->storages, len, err)
			     : -ENOMEM;
	}
	if (!rc)
		rc = ptwrite_init(&out->w, PREFIX, &pickle, len, s.n, err);
	out->size = out->w.size;
	if (rc == -ENOMEM)
		errmsg_nomem(err, pt->src.name);
	pickle_storages_done(&s);
	bytebuf_done(&pickle);
	arena_done(&a);
	free(len);
	return rc;
}

int uc_file_of_optimizer(struct zero_checkpoint *r, struct uc_file *out,
			 struct errmsg *err)
{
	const struct shard *profile;
	struct ptfile pt;
	int rc;

	/* Check that this is an optimizer shard of the checkpoint. */
	rc = zckpt_profile(r, 0, &profile, err);
	if (!rc)
		rc = tagdir_open_file(&r->dir.optim[0], &pt, err);
	if (rc)
		return rc;
	rc = uc_file_optimizer_build(r, &pt, out, err);
	ptfile_close(&pt);
	return rc;
}
