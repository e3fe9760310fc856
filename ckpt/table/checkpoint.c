/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/table/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/table/tags.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"
#include "ckpt/io/shards.h"
#include "ckpt/table/geometry.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/gather.h"

struct shards *checkpoint_shards(struct uckpt *u, const struct ckpt_file *files, size_t n)
{
	struct shards *c = shards_new(u);

	for (size_t i = 0; c && i < n; i++)
		if (shards_add(c, files[i].path, &files[i].file) < 0) {
			shards_free(c);
			return NULL;
		}
	return c;
}

bool param_state_set_number(struct param_state *st, const struct value *v)
{
	if (v->kind == VALUE_INT) {
		st->kind = STATE_INT;
		st->dtype = DTYPE_I64;
		st->i = v->i;
	} else if (v->kind == VALUE_FLOAT) {
		st->kind = STATE_FLOAT;
		st->dtype = DTYPE_F64;
		st->f = v->f;
	}
	return v->kind == VALUE_INT || v->kind == VALUE_FLOAT;
}

bool param_state_number(const struct param_state *st, double *out)
{
	if (st->kind == STATE_FLAT || !cast_knows(st->dtype))
		return false;
	cast_to_double(st->dtype, st->bytes, out, 1);
	return true;
}

/* Set the path and the name of the directory. */
static bool set_path(struct checkpoint *c, const char *path)
{
	size_t n = strlen(path);

	while (n > 1 && path[n - 1] == '/')
		n--;
	c->path = strndup(path, n);
	c->tag = c->path ? io_dir_name(roots_base(c->u, c->path)) : NULL;
	return c->tag;
}

static void free_checkpoint(struct checkpoint *c)
{
	free(c->path);
	free(c->tag);
	free(c);
}

int checkpoint_list(struct uckpt *u, const struct checkpoint_ops *ops, const char *path,
		    const struct dirlist *names, struct checkpoint **out, struct errmsg *err)
{
	struct checkpoint *c = calloc(1, ops->size);
	int rc;

	assert(ops->size >= sizeof(*c));
	if (!c)
		return errmsg_nomem(err, path);
	c->u = u;
	c->ops = ops;
	if (!set_path(c, path)) {
		free_checkpoint(c);
		return errmsg_nomem(err, path);
	}
	/* A directory that could not be listed has no entries in `dirs`. */
	c->names_there = names && names->ndirs ? names : NULL;
	rc = ops->list(c, err);
	c->names_there = NULL;
	if (rc)
		checkpoint_close(c);
	else
		*out = c;
	return rc;
}

int checkpoint_open(struct uckpt *u, const struct checkpoint_ops *ops, const char *path,
		    const struct dirlist *names, const struct user_rules *rules,
		    struct checkpoint **out, struct errmsg *err)
{
	struct checkpoint *c;
	int rc = checkpoint_list(u, ops, path, names, &c, err);

	if (rc)
		return rc;
	rc = ops->load(c, rules, err);
	if (!rc) {
		c->shards = c->shards ?: checkpoint_shards(u, c->files, c->nfiles);
		rc = c->shards ? 0 : errmsg_nomem(err, path);
	}
	if (rc)
		checkpoint_close(c);
	else
		*out = c;
	return rc;
}

void checkpoint_close(struct checkpoint *c)
{
	if (!c)
		return;
	shards_free(c->shards);
	c->ops->close(c);
	free_checkpoint(c);
}

bool param_state_equal(const struct param_state *a, const struct param_state *b)
{
	return strcmp(a->name, b->name) == 0 && a->kind == b->kind && a->dtype == b->dtype &&
	       (a->kind == STATE_FLAT || memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0);
}

int checkpoint_check_rows(const struct checkpoint *c, bool ordered, struct errmsg *err)
{
	const size_t rows = ordered ? c->norder : c->nparams;
	const char *first = NULL;
	char more[48] = "";
	size_t n = 0;

	for (size_t i = 0; i < rows; i++) {
		const struct param *p = ordered ? c->order[i] : &c->params[i];

		n += p->refused != NULL;
		first = first ?: p->refused;
	}
	if (n > 1)
		snprintf(more, sizeof(more), " (and so %zu more)", n - 1);
	return n ? errmsg_set(err, -ENOTSUP, "%s%s", first, more) : 0;
}

int checkpoint_order(struct checkpoint *c, struct errmsg *err)
{
	const int rc = c->order ? 0 : c->ops->order(c, err);

	return rc ?: checkpoint_check_rows(c, true, err);
}

enum dtype checkpoint_dtype(const struct param *p, enum dtype to)
{
	return dtype_is_floating(p->dtype) ? to : p->dtype;
}

static bool add_stored(const struct stored *s, enum dtype to, struct extent_map *out,
		       struct gathers *gathers)
{
	struct tensor t;

	stored_describe(s, &t);
	return tensor_is_contiguous(&t)
		       ? extent_add_cast(out, s->numel, s->file,
					 s->storage + s->storage_offset * dtype_size(s->dtype),
					 s->dtype, to)
		       : gathers_add_tensor(gathers, &t, s->file, s->storage, to, out);
}

const struct param *checkpoint_find(const struct checkpoint *c, const char *name)
{
	return array_find(c->params, c->nparams, sizeof(*c->params), name);
}

const char *checkpoint_path(const struct checkpoint *c, enum checkpoint_object what, unsigned mp,
			    unsigned rank)
{
	const struct ckpt_file *f = checkpoint_file(c, what, mp, rank);

	return f ? f->path : c->path;
}

int checkpoint_slice(struct checkpoint *c, const struct slice *s, const struct param_state *state,
		     struct extent_map *out, struct gathers *gathers, struct errmsg *err)
{
	const struct part_run run = {
		.slice = s, .ep = s->ep, .state = state, .numel = s->numel, .to = state->dtype
	};

	return c->ops->parts(c, &run, 1, out, gathers, err);
}

/* Append the extents of each slice: the sources of a gather. */
static int slice_maps(struct checkpoint *c, const struct param *p, const struct param_state *state,
		      struct extent_map *maps, struct gathers *gathers, struct errmsg *err)
{
	int rc = 0;

	for (unsigned t = 0; !rc && t < p->nslices; t++)
		if (p->slices[t])
			rc = checkpoint_slice(c, p->slices[t], state, &maps[t], gathers, err);
	return rc;
}

/* The power of a piece's scale in a state: scaling a parameter by s scales its
 * gradient by 1/s, so Adam's first moment has power -1 and the second -2
 * (checkpoint/affine.py, SCALE_POWER_BY_STATE). */
static bool find_power(const struct param_state *state, int *power)
{
	*power = param_state_is_master(state)             ? 1
		 : strcmp(state->name, "exp_avg") == 0    ? -1
		 : strcmp(state->name, "exp_avg_sq") == 0 ? -2
							  : 0;
	return *power != 0;
}

static int check_computed(const struct param *p, const struct geometry *g,
			  const struct param_state *state, struct errmsg *err)
{
	int power;

	if (!g->mean && !g->nscales)
		return 0;
	if (!arith_knows(state->dtype))
		return errmsg_set(err, -ENOTSUP,
		"parameter %s: the mean of %s tensors, or scaled pieces of them, are not supported",
				  p->name, dtype_name(state->dtype));
	if (!g->nscales)
		return 0;
	if (!find_power(state, &power))
		return errmsg_set(err, -ENOTSUP,
			"parameter %s: its pieces are scaled, and how that scales %s is not known",
				  p->name, state->name);
	for (size_t i = 0; i < g->nscales; i++) {
		const float by = (float)pow(g->scales[i], power);

		if (!isfinite(by) || by == 0)
			return errmsg_set(err, -EBADMSG,
				"parameter %s: its %s cannot be divided by %g to the power of %d",
					  p->name, state->name, g->scales[i], power);
	}
	return 0;
}

int checkpoint_check_param(const struct param *p, const struct param_state *state,
			   struct errmsg *err)
{
	struct geometry g;
	int rc = p->computed ? geometry_init(&g, p, err) : 0;

	if (rc || !p->computed)
		return rc;
	rc = check_computed(p, &g, state, err);
	geometry_done(&g);
	return rc;
}

static bool is_single_row(const struct geometry *g)
{
	return g->rows == 1 && !g->mean && !g->nscales;
}

/* A single row that is not computed is a list of runs; everything else is a
 * gather. */
static int add_merged(struct geometry *g, const struct param_state *state, struct extent_map **maps,
		      struct extent_map *to, struct gathers *gathers)
{
	const enum dtype dtype = state->dtype;
	const uint64_t item = dtype_size(dtype);
	struct gather *x;
	bool ok = true;
	int power;

	if (is_single_row(g)) {
		for (size_t i = 0; ok && i < g->nsegs; i++)
			ok = extent_add_range(to, &(*maps)[g->segs[i].source],
					      g->segs[i].from * item, g->segs[i].len * item, dtype,
					      dtype);
		return ok ? 0 : -ENOMEM;
	}
	if (!extent_add(to, EXTENT_GATHER, g->numel * item, (uint32_t)gathers->n, 0, dtype))
		return -ENOMEM;
	find_power(state, &power);
	x = gather_new(g, dtype, power, *maps);
	if (!x)
		return -ENOMEM;
	*maps = NULL;
	return gathers_add(gathers, x) ? 0 : -ENOMEM;
}

int checkpoint_extents(struct checkpoint *c, const struct param *p, const struct param_state *state,
		       struct extent_map *out, struct gathers *gathers, struct errmsg *err)
{
	struct extent_map *maps;
	struct geometry g;
	int rc;

	if (p->refused)
		return errmsg_set(err, -ENOTSUP, "%s", p->refused);
	if (!p->nslices || !state || state->kind != STATE_FLAT)
		return c->ops->extents(c, p, state, out, gathers, err);
	maps = calloc(p->nslices, sizeof(*maps));
	if (!maps)
		return errmsg_nomem(err, NULL);
	rc = geometry_init(&g, p, err);
	if (!rc) {
		/* The sources of a gather must not be gathers. */
		rc = slice_maps(c, p, state, maps, is_single_row(&g) ? gathers : NULL, err)
			     ?: check_computed(p, &g, state, err);
		if (!rc && (rc = add_merged(&g, state, &maps, out, gathers)))
			errmsg_nomem(err, NULL);
		geometry_done(&g);
	}
	for (unsigned t = 0; maps && t < p->nslices; t++)
		extent_done(&maps[t]);
	free(maps);
	return rc;
}

/* Append a row's elements of type `from`, and then rows of padding if there are any. */
static int add_cast(struct checkpoint *c, const struct param *p, const struct param_state *state,
		    enum dtype from, enum dtype to, struct extent_map *out,
		    struct gathers *gathers, struct errmsg *err)
{
	struct extent_map made = { 0 };
	int rc = checkpoint_extents(c, p, state, &made, gathers, err);

	if (!rc && !extent_add_range(out, &made, 0, p->numel * dtype_size(from), from, to))
		rc = errmsg_nomem(err, c->path);
	extent_done(&made);
	return rc;
}

int checkpoint_module(struct checkpoint *c, const struct param *p, enum dtype to,
		      struct extent_map *out, struct gathers *gathers, struct errmsg *err)
{
	if (!p->module)
		return add_cast(c, p, NULL, param_module_dtype(p), to, out, gathers, err);
	return add_stored(p->module, to, out, gathers) ? 0 : errmsg_nomem(err, c->path);
}

int checkpoint_weights(struct checkpoint *c, const struct param *p, enum dtype to,
		       struct extent_map *out, struct gathers *gathers, struct errmsg *err)
{
	const struct param *x = p->same ?: p;

	if (!x->numel)
		return 0;
	return x->states ? add_cast(c, x, x->states->v, x->dtype, to, out, gathers, err)
			 : checkpoint_module(c, x, to, out, gathers, err);
}

/* Get the optimizer's step count, if it is a whole number. */
static bool optimizer_step(const struct param_states *states, double *step)
{
	for (size_t i = 1; states && i < states->n; i++)
		if (strcmp(states->v[i].name, "step") == 0)
			return param_state_number(&states->v[i], step);
	return false;
}

void checkpoint_warn_of_steps(const struct checkpoint *c, const char *model, const char *optimizer,
			      const struct param_states *first, bool most,
			      const struct errmsg_sink *to)
{
	const int64_t skipped = c->facts.skipped_steps > 0 ? c->facts.skipped_steps : 0;
	const int64_t saved = c->facts.global_steps, named = tags_step(c->tag);
	double step;

	/* The tag was renamed, or contains files of another tag. */
	if (saved >= 0 && named >= 0 && saved != named)
		errmsg_put(to, "%s: global_steps is %" PRId64 ", but the tag's name says %" PRId64
			   ": renamed tag, or files of different saves?", model, saved, named);
	if (saved >= skipped && optimizer_step(first, &step) &&
	    (step < (double)(saved - skipped) || (most && step > (double)(saved - skipped) + 1)))
		errmsg_put(to, "%s was saved at global step %" PRId64
			   " (%" PRId64 " skipped), but the optimizer in %s has"
		" made %.0f steps: the files are of different steps, or the optimizer was reset",
			   model, saved, skipped, optimizer, step);
}
