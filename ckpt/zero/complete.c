/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save that is interrupted, or made over an older one, leaves files of two
 * steps in one directory.  Names and sizes do not show it; DeepSpeed writes no
 * mark into a tag.  What shows it are the numbers of steps: `global_steps` in
 * model states, and the step of the optimizer in each shard (compared with
 * rank 0's when a shard is read).
 */
#include "ckpt/zero/complete.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tags.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/zero/checkpoint.h"

/* --- model states -------------------------------------------------------------- */

/* Check that the rank has the experts that belong to its position. */
static int check_ep(const struct zero_checkpoint *r, const char *path,
		    const struct expert_layer *l, struct errmsg *err)
{
	const unsigned degree = experts_degree(l);
	const struct rank_stripe stripe = {
		.ranks = r->dir.dp_degree / degree,
		.degree = degree,
		.data_first = r->model.ranks[0].experts.data_first,
	};
	const unsigned dp = names_parse(strrchr(path, '/') + 1).dp;
	unsigned ep;

	rank_stripe_part(&stripe, dp, &ep);
	if (!l->fused || l->ep < 0 || l->ep == ep)
		return 0;
	return errmsg_set(err, -EBADMSG,
			  "%s: is of expert-parallel rank %" PRId64 " (%s), but"
			  " data-parallel rank %u is rank %u of %u", path,
			  l->ep, l->prefix, dp, ep, degree);
}

static int check_layers(const struct zero_checkpoint *r, const char *path,
			const struct value *root, struct errmsg *err)
{
	const struct rank_params *const c = &r->model.ranks[0];
	struct arena a = { 0 };
	struct experts x;
	int rc = experts_init(&x, &a, root, c->zero3, path, err);

	if (!rc && !experts_equal(&x, &c->experts))
		rc = errmsg_set(err, -EBADMSG,
				"%s: records different experts than %s", path,
				r->dir.model[0].name);
	for (size_t i = 0; !rc && i < x.n; i++)
		rc = check_ep(r, path, &x.layers[i], err);
	arena_done(&a);
	return rc;
}

int zckpt_check_facts(const struct zero_checkpoint *r, const char *path,
		      const struct value *root, struct errmsg *err)
{
	const struct rank_params *const c = &r->model.ranks[0];
	const struct value *const version = value_find(root, KEY_DS_VERSION);
	int64_t step;

	if (value_get_int(value_find(root, "global_steps"), &step) &&
	    c->global_steps >= 0 && step != c->global_steps)
		return errmsg_set(err, -EBADMSG,
				  "%s: is of global step %" PRId64 ", but %s is"
				  " of %" PRId64 ": files of different"
				  " checkpoints", path, step,
				  r->dir.model[0].name, c->global_steps);
	if (value_is_cstr(version) && *c->ds_version &&
	    strcmp(version->str.p, c->ds_version) != 0)
		return errmsg_set(err, -EBADMSG,
				  "%s: was written by DeepSpeed %.20s, but %s"
				  " by %.20s: files of different checkpoints", path,
				  version->str.p, r->dir.model[0].name,
				  c->ds_version);
	return check_layers(r, path, root, err);
}

/* --- all files ----------------------------------------------------------------- */

/* Open file `i` of those that are not optimizer shards: model states, layers and
 * experts. */
static int complete_open_file(void *ctx, size_t i, struct errmsg *err)
{
	const struct zero_checkpoint *const r = ctx;
	const struct tagdir *const d = &r->dir;
	const struct tag_file *const f =
		i < d->nmodel ? &d->model[i] :
		i < d->nmodel + d->nlayer ?
				&d->layer[i - d->nmodel] :
				&d->expert[i - d->nmodel - d->nlayer];
	struct ptfile pt;
	int rc = tagdir_open_file(f, &pt, err);

	if (rc)
		return rc;
	if (i < d->nmodel)
		rc = zckpt_check_facts(r, f->path, pt.root, err);
	ptfile_close(&pt);
	return rc;
}

static int open_others(struct zero_checkpoint *r, struct errmsg *err)
{
	const struct tagdir *const d = &r->dir;

	return parallel_far(d->nmodel + d->nlayer + d->nexpert,
			    parallel_width(), complete_open_file, r, err);
}

int zckpt_check_files(struct zero_checkpoint *r, struct errmsg *err)
{
	int rc = zckpt_profiles(r, err);

	for (unsigned mp = 0; !rc && mp < r->dir.mp_degree; mp++)
		rc = zckpt_load_shards(r, mp, 0, r->dir.dp_degree, 1, err);
	return rc ? rc : open_others(r, err);
}

/* --- steps ----------------------------------------------------------------------- */

/* The step that the optimizer has counted, if it counts whole ones. */
static bool optimizer_step(const struct shard *s, double *step)
{
	const struct shard_state *const v = s->ngroups ? s->groups[0].states :
							 NULL;
	float f;

	for (size_t i = 0; v && i < s->groups[0].nstates; i++) {
		if (strcmp(v[i].name, "step") != 0)
			continue;
		if (v[i].kind == STATE_INT) {
			*step = (double)v[i].i;
			return true;
		}
		if (v[i].kind == STATE_TENSOR && v[i].flat.dtype == DTYPE_F32) {
			memcpy(&f, v[i].bytes, sizeof(f));
			*step = (double)f;
			return true;
		}
	}
	return false;
}

/* A name that says another step than the files: a renamed tag, or files of another
 * one. */
static bool warn_of_name(const struct zero_checkpoint *r, struct errmsg *out)
{
	const int64_t step = r->model.ranks[0].global_steps;
	const int64_t named = tags_step(r->dir.tag);

	if (step < 0 || named < 0 || step == named)
		return false;
	errmsg_set(out, 0, "%s is of global step %" PRId64 ", not of the step in"
		   " the tag's name: files of different steps?",
		   r->dir.model[0].name, step);
	return true;
}

/*
 * Are these steps of an optimizer none that a model of `expected` steps can have?
 * DeepSpeed before 0.14 counts one more, and stage 3's optimizers count a step
 * for each of their sub-groups after some resumes.  ZenFlow's count micro-batches,
 * as many to a global step as update_interval says, or as it finds by itself.
 */
static bool is_odd_step(const struct zero_checkpoint *r, double step,
			int64_t expected)
{
	return step < (double)expected ||
	       (!r->dir.zero3 && !r->model.ranks[0].zenflow &&
		step > (double)expected + 1);
}

static bool warn_of_optimizer(const struct zero_checkpoint *r,
			      struct errmsg *out)
{
	const struct rank_params *const c = &r->model.ranks[0];
	const struct shard *const s = zckpt_shard(r, 0, 0);
	const int64_t skipped = c->skipped_steps > 0 ? c->skipped_steps : 0;
	double step;

	if (!s || c->global_steps < skipped || !optimizer_step(s, &step) ||
	    !is_odd_step(r, step, c->global_steps - skipped))
		return false;
	errmsg_set(out, 0, "%s was saved at global step %" PRId64 " (%" PRId64 " skipped),"
		   " but the optimizer in %s has made %.0f steps: the files are"
		   " of different steps, or the optimizer was reset",
		   r->dir.model[0].name, c->global_steps, skipped,
		   r->dir.optim[0].name, step);
	return true;
}

/* --- sizes ----------------------------------------------------------------------- */

static bool warn_of_small(const struct tag_file *f, size_t n, uint64_t least,
			  struct errmsg *out)
{
	char more[64] = "";

	if (!f)
		return false;
	if (n > 1)
		snprintf(more, sizeof(more), ", and %zu more files are too small",
			 n - 1);
	if (least)
		errmsg_set(out, 0, "%s is truncated: it has %" PRIu64 " bytes, and"
			   " its tensors take %" PRIu64 "%s; reading what it"
			   " holds will fail", f->name, f->file.size, least, more);
	else
		errmsg_set(out, 0, "%s is no file of torch.save: it has %" PRIu64
			   " bytes%s; reading what it holds will fail",
			   f->name, f->file.size, more);
	return true;
}

static uint64_t flat_bytes(const struct flat *f, uint64_t numel)
{
	return f->numel && !f->swapped ? numel * dtype_size(f->dtype) : 0;
}

/* The bytes that the tensors of a shard take at least, by those of the first shard of
 * its model-parallel rank; 0 if that is not loaded. */
static uint64_t least_bytes(const struct zero_checkpoint *r, size_t number)
{
	const unsigned mp = (unsigned)number / r->dir.dp_degree;
	const unsigned rank = (unsigned)number % r->dir.dp_degree;
	const struct shard *const s = zckpt_shard(r, mp, 0);
	const struct layout *const l = &r->layouts[mp];
	uint64_t bytes = 0;
	unsigned which;

	for (size_t g = 0; s && g < s->ngroups; g++) {
		const struct shard_group *const x = &s->groups[g];
		const uint64_t numel = partition_filled(
			&l->groups[g],
			rank_stripe_part(&l->stripe[g], rank, &which));

		bytes += flat_bytes(&x->fp32, numel);
		for (size_t i = 0; i < x->nstates && !x->replicated; i++)
			if (x->states[i].kind == STATE_FLAT &&
			    x->states[i].flat.numel == x->fp32.numel)
				bytes += flat_bytes(&x->states[i].flat, numel);
	}
	return bytes;
}

static bool warn_of_truncated(const struct zero_checkpoint *r,
			      struct errmsg *out)
{
	const struct tag_file *first = NULL;
	uint64_t least = 0;
	size_t tiny, n = 0;

	if (tagdir_find_tiny(&r->dir, &tiny))
		return false; /* warned of already */
	for (size_t i = 0; i < r->dir.noptim; i++) {
		const uint64_t bytes = least_bytes(r, i);

		if (r->dir.optim[i].file.size < bytes && !n++) {
			first = &r->dir.optim[i];
			least = bytes;
		}
	}
	return warn_of_small(first, n, least, out);
}

bool zckpt_warning(const struct zero_checkpoint *r, size_t i, struct errmsg *out)
{
	const struct tag_file *tiny;
	size_t n;

	assert(i < ZCKPT_WARNINGS);
	switch (i) {
	case 0:
		return warn_of_name(r, out);
	case 1:
		return warn_of_optimizer(r, out);
	case 2:
		tiny = tagdir_find_tiny(&r->dir, &n);
		return warn_of_small(tiny, n, 0, out);
	}
	return warn_of_truncated(r, out);
}
