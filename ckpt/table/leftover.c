/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tag that is saved again by fewer ranks, at another ZeRO stage, or in another type keeps the
 * files of the earlier save that the newer one does not overwrite.
 *
 *   zero_pp_rank_D_mp_rank_M_optim_states.pt	of ranks that no longer exist
 *   bf16_zero_pp_rank_...	beside the same without bf16_, or the other way round
 *   mp_rank_M_model_states.pt	beside those of ZeRO-3, or the other way round
 *   layer_L-model_states.pt	of a pipeline, beside model states that have the module
 *
 * The files of ranks 0 are always written.  A shard and the model states of one save record the
 * same number of data-parallel ranks (partition_count, but of experts; dp_world_size) and the same
 * stage, and bf16_ is in the name if bf16 was enabled (runtime/engine.py, _get_zero_ckpt_prefix).
 * Modification times decide only if both saves have whole files of ranks 0, because a copy may not
 * have kept the times.
 */
#include "ckpt/table/leftover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"

/* At most this many files are named. */
#define NAMED_MAX 5

/* A save, identified by its files of ranks 0. */
struct save {
	const struct ckpt_file *optim, *model;
	int64_t stage;
	int64_t dp, mp, tp; /* numbers of ranks; tp is an upper limit */
	bool prefixed_right, is_pipeline;
};

static size_t prefix_len(const struct ckpt_file *f)
{
	return (size_t)(strstr(f->name, "zero_pp_rank_") - f->name);
}

static bool is_bf16(const struct value *config)
{
	return value_is_true(value_find_path(config, "bf16", "enabled", NULL)) ||
	       value_is_true(value_find_path(config, "bfloat16", "enabled", NULL));
}

/* Return the number of ranks that an optimizer shard records: one number, or a list with one per
 * group, in which groups of experts may differ. */
static int64_t partition_count(const struct value *dict)
{
	const struct value *const v = value_find(dict, KEY_PARTITION_COUNT);
	const struct value_seq *const list = value_items(v);
	const struct value *groups =
		value_find_path(dict, KEY_BASE_OPTIMIZER_STATE, KEY_PARAM_GROUPS, NULL);
	int64_t most = -1, n;

	if (value_get_int(v, &n))
		return n;
	for (size_t i = 0; list && i < list->n; i++)
		if (!value_is_true(value_find(value_item(groups, i), "moe")) &&
		    value_get_int(list->v[i], &n) && n > most)
			most = n;
	return most;
}

static bool read_shard(struct save *s)
{
	const struct value *dict;
	struct ptfile pt;

	if (ckpt_file_open(s->optim, &pt, NULL))
		return false;
	dict = value_find(pt.root, KEY_OPTIMIZER_STATE_DICT);
	s->dp = partition_count(dict);
	if (!value_get_int(value_find(dict, KEY_ZERO_STAGE), &s->stage))
		s->stage = 1; /* BF16_Optimizer */
	ptfile_close(&pt);
	return s->dp > 0 && s->dp <= NAMES_RANK_MAX;
}

/* Do the model states belong to the save that wrote the shard? */
static bool read_model(struct save *s)
{
	int64_t dp = -1, stage = s->stage;
	const struct value *config;
	struct ptfile pt;

	if (ckpt_file_open(s->model, &pt, NULL))
		return false;
	config = value_find(pt.root, KEY_DS_CONFIG);
	value_get_int(value_find(pt.root, "dp_world_size"), &dp);
	value_get_int(value_find(pt.root, "mp_world_size"), &s->mp);
	s->tp = s->mp;
	value_get_int(value_find_path(pt.root, "checkpoint_parallel_dimensions", "tp_degree", NULL),
		      &s->tp);
	value_get_int(value_find_path(config, "zero_optimization", "stage", NULL), &stage);
	s->prefixed_right =
		is_bf16(config) == (strncmp(s->optim->name, "bf16_", 5) == 0);
	s->is_pipeline = !value_find_pairs(pt.root, "module");
	ptfile_close(&pt);
	return (!s->dp || dp == s->dp) && stage == s->stage && s->mp > 0 &&
	       s->mp <= NAMES_RANK_MAX;
}

/* Find the save that wrote shard `i`, which is of ranks 0.  False if its model states were
 * overwritten. */
static bool read_save(const struct zero_dir *d, size_t i, struct save *s)
{
	struct ckname model = { .kind = CKPT_FILE_MODEL };

	*s = (struct save){ .optim = &d->optim[i] };
	if (!read_shard(s))
		return false;
	if (s->stage == 3)
		model.kind = CKPT_FILE_MODEL3;
	s->model = zero_dir_find(d, &model, NULL);
	return s->model && read_model(s);
}

/* Compare two saves by age: -1, 0 or 1; newer saves are greater. */
static int compare(const struct save *a, const struct save *b)
{
	return ORDER(a->prefixed_right, b->prefixed_right) ?:
	       ORDER(a->optim->file.mtime_ns, b->optim->file.mtime_ns);
}

/* Find the newest save.  The shards of ranks 0, with any prefix, are the first ones.  Without
 * ZeRO there are none, and one file for all data-parallel ranks. */
static bool find_newest(const struct zero_dir *d, struct save *out)
{
	bool one = !d->noptim && d->nmodel;

	if (one) {
		*out = (struct save){ .optim = d->model, .model = d->model };
		one = read_model(out);
		out->dp = 1;
	}

	for (size_t i = 0;
	     i < d->noptim && !d->optim[i].id.mp && !d->optim[i].id.dp; i++) {
		struct save s;
		int order;

		if (!read_save(d, i, &s))
			continue;
		order = out->optim ? compare(&s, out) : 1;
		if (order > 0)
			*out = s;
		one = order > 0 || (one && order < 0);
	}
	return one;
}

/* Did the save write a file of this name? */
static bool wrote(const struct save *s, const struct ckpt_file *f)
{
	const struct ckname *const id = &f->id;

	switch (id->kind) {
	case CKPT_FILE_OPTIM:
		return id->mp < s->mp && id->dp < s->dp &&
		       prefix_len(f) == prefix_len(s->optim) &&
		       strncmp(f->name, s->optim->name, prefix_len(f)) == 0;
	case CKPT_FILE_MODEL:
	case CKPT_FILE_MODEL3:
		return id->kind == s->model->id.kind && id->mp < s->mp &&
		       id->dp < s->dp;
	case CKPT_FILE_EXPERT:
	case CKPT_FILE_EXPERT_OPTIM:
		return id->mp < s->mp && (id->kind == CKPT_FILE_EXPERT || !s->stage);
	case CKPT_FILE_LAYER:
		return s->is_pipeline && id->mp < s->tp;
	default:
		return true;
	}
}

/* Is it the first file beyond the save's ranks, although it records the same save? Then the
 * recorded numbers of ranks are wrong. */
static bool contradicts(const struct save *s, const struct ckpt_file *f)
{
	struct save other = *s;

	if (f->id.mp < s->mp ? f->id.mp || f->id.dp != s->dp : f->id.dp)
		return false;
	if (f->id.kind == CKPT_FILE_OPTIM) {
		other.optim = f;
		return !f->id.mp && read_shard(&other) && other.dp == s->dp &&
		       other.stage == s->stage;
	}
	other.model = f;
	return f->id.kind == s->model->id.kind && read_model(&other) &&
	       other.mp == s->mp;
}

/* Name the files that the save did not write.  NULL if there are none, or memory runs
 * out. */
static char *name_others(const struct zero_dir *d, const struct save *s)
{
	char *text = NULL;
	size_t size, n = 0;
	FILE *const f = open_memstream(&text, &size);
	bool ok = f;

	for (size_t i = 0; ok && i < d->nfiles; i++) {
		if (wrote(s, &d->files[i]))
			continue;
		ok = !contradicts(s, &d->files[i]);
		if (n++ < NAMED_MAX)
			fprintf(f, "%s %s", n == 1 ? "files of a former save are left out:" : ",",
				d->files[i].name);
	}
	if (n > NAMED_MAX)
		fprintf(f, " and %zu more", n - NAMED_MAX);
	if (f && fclose(f) == 0 && ok && n)
		return text;
	free(text);
	return NULL;
}

bool leftover_drop(struct zero_dir *d)
{
	struct save s = { 0 };
	char *const left = find_newest(d, &s) ? name_others(d, &s) : NULL;
	struct ckpt_file optim, model;
	size_t kept = 0;

	if (!left)
		return false;
	/* Copy these two: they are in the list that changes. */
	optim = *s.optim;
	model = *s.model;
	s.optim = &optim;
	s.model = &model;
	for (size_t i = 0; i < d->nfiles; i++)
		if (wrote(&s, &d->files[i]))
			d->files[kept++] = d->files[i];
		else
			free(d->files[i].path);
	d->nfiles = kept;
	d->zero3 = s.stage == 3;
	d->dp_degree = (unsigned)s.dp;
	d->mp_degree = (unsigned)s.mp;
	d->left = left;
	return true;
}
