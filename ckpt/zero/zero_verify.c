/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save that was interrupted, or that overwrote an older one, leaves files of two steps in one
 * directory.  Names and sizes do not show this, and DeepSpeed writes no mark into a tag.  Only the
 * step numbers reveal it: `global_steps` in model states, and the step of the optimizer in each
 * shard (compared with rank 0's when a shard is read).
 */
#include "ckpt/zero/zero_verify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/zero/checkpoint.h"

/* Check that an AutoEP rank has the experts that belong to its position. */
static int check_ep(const struct zero_checkpoint *r, const char *path, const struct expert_layer *l,
		    struct errmsg *err)
{
	const unsigned degree = experts_degree(l);
	const struct rank_stripe stripe = rank_stripe_of(
		r->dir.dp_degree, degree, r->model.tp, r->model.ranks[0].experts.data_first);
	const struct ckname id = names_parse(strrchr(path, '/') + 1);
	unsigned ep;

	/* Without ZeRO the number of ranks is unknown. */
	if (!l->fused || l->ep < 0 || r->stage0)
		return 0;
	ep = rank_stripe_place(&stripe, id.mp, id.dp).which;
	if (l->ep == ep)
		return 0;
	return errmsg_set(err, -EBADMSG,
			  "%s: is of expert-parallel rank %" PRId64 " (%s), but"
			  " data-parallel rank %u is rank %u of %u",
			  path, l->ep, l->prefix, id.dp, ep, degree);
}

static int check_layers(const struct zero_checkpoint *r, const char *path, const struct value *root,
			struct errmsg *err)
{
	const unsigned mp = names_parse(strrchr(path, '/') + 1).mp;
	const struct rank_params *c = &r->model.ranks[mp < r->dir.mp_degree ? mp : 0];
	struct arena a = { 0 };
	struct experts x;
	int rc = experts_init(&x, &a, root, c->facts.zero3, path, err);

	if (!rc && !experts_equal(&x, &c->experts))
		rc = errmsg_set(err, -EBADMSG, "%s: records different experts than %s", path,
				r->dir.model[zero_dir_model_number(&r->dir, c->mp)].name);
	for (size_t i = 0; !rc && i < x.n; i++)
		rc = check_ep(r, path, &x.layers[i], err);
	arena_done(&a);
	return rc;
}

int zero_check_facts(const struct checkpoint *c, const char *path, const struct value *root,
		     struct errmsg *err)
{
	const struct zero_checkpoint *r = (const struct zero_checkpoint *)c;
	const struct value *version = value_find(root, KEY_DS_VERSION);
	const char *first = r->dir.model[0].name;
	int64_t step;

	if (value_get_int(value_find(root, "global_steps"), &step) && c->facts.global_steps >= 0 &&
	    step != c->facts.global_steps)
		return errmsg_set(err, -EBADMSG,
				  "%s: is of global step %" PRId64 ", but %s is of %" PRId64
				  ": files of different checkpoints",
				  path, step, first, c->facts.global_steps);
	/* Without ZeRO, DeepSpeed's versions are not compared. */
	if (value_is_cstr(version) && *c->facts.ds_version && !c->facts.source &&
	    strcmp(version->str.p, c->facts.ds_version) != 0)
		return errmsg_set(err, -EBADMSG,
				  "%s: was written by DeepSpeed %.20s, but %s by %.20s:"
				  " files of different checkpoints",
				  path, version->str.p, first, c->facts.ds_version);
	return check_layers(r, path, root, err);
}

/*
 * Files of layers hold the model's weights, which a resumed run loads.  No tree shows these files,
 * so no other check would detect a missing one.
 *
 * Parameters are called <layer>.<name>.  The first rank of each tensor-parallel slice
 * writes layer_<layer>-model_<slice>-model_states.pt, without the slice if the topology
 * has no axis for it (runtime/pipe/module.py).
 */
void zero_find_layers(const struct zero_checkpoint *r, const struct errmsg_sink *found)
{
	const struct model *m = &r->model;
	struct ckname id = { .kind = CKPT_FILE_LAYER };

	for (unsigned mp = 0; r->dir.nlayer && mp < r->dir.mp_degree; mp++)
		for (size_t i = 0; i < m->ranks[mp].nslices; i++) {
			const char *name = m->ranks[mp].slices[i].name;
			char *end;
			const unsigned long layer = strtoul(name, &end, 10);

			/* Tied parameters have names without a layer. */
			if (*name < '0' || *name > '9' || *end != '.')
				continue;
			id.layer = (unsigned)layer;
			id.mp = mp % m->tp;
			if (layer > NAMES_RANK_MAX || !zero_dir_find(&r->dir, &id, NULL))
				errmsg_put(found,
				"%s: the file of layer %lu, tensor-parallel rank %u, is missing",
					   r->dir.path, layer, id.mp);
		}
}

/* States that a ZeRO optimizer cannot have are not damage. */
static int check_states(const struct shard *s, struct errmsg *err)
{
	struct errmsg why;
	const int rc = shard_check_states(s, &why);

	return rc == -EBADMSG ? errmsg_set(err, rc, "%s", why.text) : 0;
}

/* Check a shard alone, because the first shard of its model-parallel rank, with which it would be
 * compared, is damaged. */
static int check_alone(struct zero_checkpoint *r, unsigned i, struct errmsg *err)
{
	struct partitioning layout = { .ranks = r->dir.dp_degree, .tp = r->model.tp };
	struct shard s;
	int rc = shard_load(&s, &r->dir, i, &r->model.ranks[i / r->dir.dp_degree], &layout, err);

	if (!rc) {
		rc = check_states(&s, err);
		shard_done(&s);
	}
	partitioning_done(&layout);
	return rc;
}

static int check_shard(struct zero_checkpoint *r, unsigned i, struct errmsg *err)
{
	const unsigned mp = i / r->dir.dp_degree, rank = i % r->dir.dp_degree;

	if (!zero_shard(r, mp, 0))
		return check_alone(r, i, err);
	return zero_load_shards(r, mp, rank, rank + 1, 1, err)
		       ?: check_states(zero_shard(r, mp, rank), err);
}

/* Files are numbered in this order: optimizer shards, experts, model states, layers. */
static size_t count_files(const struct zero_dir *d, bool all)
{
	return d->noptim + d->nexpert + (all ? d->nmodel + d->nlayer : 0);
}

static int check_file(void *ctx, size_t i, struct errmsg *err)
{
	struct zero_checkpoint *r = ctx;
	const struct zero_dir *d = &r->dir;
	const struct ckpt_file *f;
	struct ptfile pt;
	int rc;

	if (i < d->noptim)
		return check_shard(r, (unsigned)i, err);
	i -= d->noptim;
	if (i < d->nexpert)
		return rank_params_check_expert(&r->model.ranks[d->expert[i].id.mp], &d->expert[i],
						err);
	i -= d->nexpert;
	f = i < d->nmodel ? &d->model[i] : &d->layer[i - d->nmodel];
	rc = ckpt_file_open(f, &pt, err);
	if (rc)
		return rc;
	if (i < d->nmodel)
		rc = zero_check_facts(&r->c, f->path, pt.root, err);
	ptfile_close(&pt);
	return rc;
}

int zero_verify(struct checkpoint *c, struct errmsg *err)
{
	struct zero_checkpoint *r = (struct zero_checkpoint *)c;
	int rc = c->ops->check(c, false, err);

	for (unsigned mp = 0; !rc && mp < r->dir.mp_degree; mp++)
		rc = zero_load_shards(r, mp, 0, r->dir.dp_degree, 1, err);
	return rc
		       ?: parallel_steps(r->dir.u, "checking files", parallel_far,
					 count_files(&r->dir, true), parallel_width(), check_file,
					 r, err);
}

/* Compare the first shard of a model-parallel rank with the first rank's in its pipeline stage, and
 * that one with the first stage's.  Loading has compared the shards within a model-parallel
 * rank. */
static int check_profile(const struct zero_checkpoint *r, unsigned mp, struct errmsg *err)
{
	const unsigned in_stage = mp % r->model.tp;
	const unsigned first = in_stage ? mp - in_stage : 0;

	return zero_shard(r, first, 0) && zero_shard(r, mp, 0)
		       ? zero_compare_shards(r, zero_shard_number(r, first, 0),
					     zero_shard_number(r, mp, 0), in_stage, err)
		       : 0;
}

struct listing {
	struct zero_checkpoint *r;
	struct errmsg *err; /* one per file */
};

static int list_file(void *ctx, size_t i, struct errmsg *ignored)
{
	const struct listing *l = ctx;

	(void)ignored;
	if (!check_file(l->r, i, &l->err[i]))
		*l->err[i].text = '\0';
	return 0;
}

void zero_find_problems(struct checkpoint *c, bool all, const struct errmsg_sink *found)
{
	struct zero_checkpoint *r = (struct zero_checkpoint *)c;
	const size_t n = count_files(&r->dir, all);
	struct listing l = { r, calloc(n, sizeof(*l.err)) };
	struct errmsg err;

	if (!l.err) {
		errmsg_put(found, "out of memory");
		return;
	}
	/* Load a rank's shards in parallel.  If that fails, read each shard again, to get a message
	 * for each. */
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++)
		zero_load_shards(r, mp, 0, r->dir.dp_degree, 1, NULL);
	parallel_steps(r->dir.u, "checking files", parallel_far, n, parallel_width(), list_file, &l,
		       NULL);
	for (size_t i = 0; i < n; i++)
		if (*l.err[i].text)
			errmsg_put(found, "%s", l.err[i].text);
	free(l.err);
	for (unsigned mp = 1; mp < r->dir.mp_degree; mp++)
		if (check_profile(r, mp, &err))
			errmsg_put(found, "%s", err.text);
	zero_find_layers(r, found);
}

/*
 * DeepSpeed before 0.14 counts one step more, and stage 3's optimizers count a step for each of
 * their sub-groups after some resumes.  ZenFlow's optimizer counts micro-batches; a global step has
 * update_interval of these, or a number that ZenFlow chooses.
 */
static void warn_of_steps(const struct zero_checkpoint *r, const struct errmsg_sink *to)
{
	const struct shard *s = zero_shard(r, 0, 0);

	checkpoint_warn_of_steps(&r->c, r->dir.model[0].name,
				 r->dir.noptim ? r->dir.optim[0].name : r->dir.model[0].name,
				 s && s->ngroups ? &s->groups[0].states : NULL,
				 !r->dir.zero3 && !r->model.ranks[0].zenflow, to);
}

/* Warn of `n` files that are too small; the first is `f`.  It needs `least` bytes or, if that is 0,
 * as many as any torch.save file. */
static void warn_of_small(const struct ckpt_file *f, size_t n, uint64_t least,
			  const struct errmsg_sink *to)
{
	char more[64] = "";

	if (n > 1)
		snprintf(more, sizeof(more), ", and %zu more files are too small", n - 1);
	if (least)
		errmsg_put(to,
			   "%s is truncated: it has %" PRIu64 " bytes, but"
			   " its tensors need %" PRIu64 "%s; copy it again",
			   f->name, f->file.size, least, more);
	else
		errmsg_put(to,
			   "%s is no file of torch.save: it has %" PRIu64
			   " bytes%s; copy it again",
			   f->name, f->file.size, more);
}

static uint64_t flat_bytes(const struct param_state *st, uint64_t numel)
{
	return st->numel && !st->swapped ? numel * dtype_size(st->dtype) : 0;
}

/* Return the least bytes that the tensors of a shard take, judging by the first shard of its
 * model-parallel rank; 0 if that is not loaded. */
static uint64_t least_bytes(const struct zero_checkpoint *r, size_t number)
{
	const unsigned mp = (unsigned)number / r->dir.dp_degree;
	const unsigned rank = (unsigned)number % r->dir.dp_degree;
	const struct shard *s = zero_shard(r, mp, 0);
	const struct partitioning *l = &r->layouts[mp];
	uint64_t bytes = 0;

	for (size_t g = 0; s && g < s->ngroups; g++) {
		const struct flat_group *x = &s->groups[g];
		const uint64_t numel = partition_filled(
			&l->groups[g], rank_stripe_place(&l->stripe[g], mp, rank).part);

		for (size_t i = 0; i < (x->replicated ? 1 : x->states.n); i++)
			if (x->states.v[i].kind == STATE_FLAT &&
			    x->states.v[i].numel == x->states.v[0].numel)
				bytes += flat_bytes(&x->states.v[i], numel);
	}
	return bytes;
}

static void warn_of_truncated(const struct zero_checkpoint *r, const struct errmsg_sink *to)
{
	size_t n;
	const struct ckpt_file *first = zero_dir_find_tiny(&r->dir, &n);
	const bool tiny = first;
	uint64_t least = 0;

	for (size_t i = 0; !tiny && i < r->dir.noptim; i++) {
		const uint64_t bytes = least_bytes(r, i);

		if (r->dir.optim[i].file.size < bytes && !n++) {
			first = &r->dir.optim[i];
			least = bytes;
		}
	}
	if (first)
		warn_of_small(first, n, least, to);
}

void zero_warn(const struct checkpoint *c, const struct errmsg_sink *to)
{
	const struct zero_checkpoint *r = (const struct zero_checkpoint *)c;

	warn_of_steps(r, to);
	warn_of_truncated(r, to);
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++) {
		if (r->stage0)
			stage0_warn(&r->stage0[mp], to);
		errmsg_list_put(&r->model.ranks[mp].warnings, to);
	}
}
