/* SPDX-License-Identifier: Apache-2.0 */
/* The loader of distributed checkpoints: lists their files, and finds the elements of rows. */
#include "ckpt/foreign/dcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/beneath.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/foreign/dcp_extents.h"
#include "ckpt/io/io.h"
#include "ckpt/table/geometry.h"
#include "ckpt/remote/cache.h"
#include "ckpt/remote/latency.h"
#include "ckpt/vfile/extent.h"

static struct dcp_checkpoint *own(struct checkpoint *c)
{
	return (struct dcp_checkpoint *)c;
}

/* Read the metadata of the directory, or of both directories of a pair; the second may be missing
 * if the optimizer was not saved. */
static int read_metadata(struct dcp_checkpoint *x, struct errmsg *err)
{
	const char *const *pair;
	const char *path = arena_format(&x->arena, "%s/" DCP_METADATA, x->c.path);
	struct attrs a;
	int rc;

	if (!path)
		return errmsg_nomem(err, x->c.path);
	if (!io_stat(x->c.u, path, 0, &a, NULL, NULL)) {
		rc = dcp_metadata_add(&x->metadata, x->c.u, x->c.path, err);
		x->c.witness = x->metadata.nfiles - 1;
		return rc;
	}
	rc = dcp_ranks_list(x, err);
	if (rc || x->nranks)
		return rc;
	pair = detect_dcp_pair(x->c.u, x->c.path, x->c.names_there) ?: names_dcp_pairs[0];
	for (size_t i = 0; !rc && i < 2; i++) {
		path = arena_format(&x->arena, "%s/%s", x->c.path, pair[i]);
		if (!path)
			return errmsg_nomem(err, x->c.path);
		if (!i || !io_stat(x->c.u, path, 0, &a, NULL, NULL))
			rc = dcp_metadata_add(&x->metadata, x->c.u, path, err);
		if (!i)
			x->c.witness = x->metadata.nfiles - 1;
	}
	return rc;
}

static int find_file(void *ctx, size_t i, struct errmsg *err)
{
	struct ckpt_file *f = &((struct dcp_checkpoint *)ctx)->files[i];
	const int rc = ckpt_file_find(f, err);

	return beneath_is_missing(rc)
		       ? errmsg_set(err, -EBADMSG,
				    "%s: is missing, and " DCP_METADATA " says that data is in it",
				    f->path)
		       : rc;
}

/* Check that the records of an entry end within their files. */
static int check_bounds(const struct dcp_checkpoint *x, const struct dcp_entry *t,
			struct errmsg *err)
{
	for (size_t i = 0; i < t->nchunks; i++) {
		const struct dcp_chunk *c = &t->chunks[i];
		const struct ckpt_file *f = &x->files[c->file];

		if (c->len && !checked_range(c->at, c->len, f->file.size))
			return errmsg_set(err, -EBADMSG,
				"%s: has %llu bytes, but %s is said to end at %llu: truncated?",
				f->path, (unsigned long long)f->file.size, t->key,
				(unsigned long long)(c->at + c->len));
	}
	return 0;
}

/* Find all files that the metadata names. */
static int find_files(struct dcp_checkpoint *x, struct errmsg *err)
{
	const struct dcp_metadata *m = &x->metadata;
	bool ok = (x->files = calloc(m->nfiles + 1, sizeof(*x->files)));
	int rc;

	for (; ok && x->c.nfiles < m->nfiles; x->c.nfiles++) {
		struct ckpt_file *f = &x->files[x->c.nfiles];

		f->u = x->c.u;
		ok = (f->path = strdup(m->files[x->c.nfiles]));
	}
	x->c.files = x->files;
	if (!ok)
		return errmsg_nomem(err, x->c.path);
	rc = parallel_steps(x->c.u, "looking at files", parallel_far, m->nfiles, 1, find_file, x,
			    err);
	for (size_t i = 0; !rc && i < m->nentries; i++)
		rc = check_bounds(x, &m->entries[i], err);
	return rc;
}

static int dcp_list(struct checkpoint *c, struct errmsg *err)
{
	struct dcp_checkpoint *x = own(c);
	struct latency_request q;
	struct attrs a;
	int rc = io_stat(c->u, c->path, 0, &a, NULL, err);

	if (rc)
		return rc;
	c->st = a.st;
	latency_begin(cache_latency(c->u), &q, SIZE_MAX);
	rc = read_metadata(x, err)
		     ?: dcp_megatron_find(&x->megatron, &x->metadata, c->u, x->c.path, err);
	latency_end(cache_latency(c->u), &q);
	rc = rc ?: find_files(x, err);
	if (rc)
		return rc;
	c->mtime_s = x->files[c->witness].mtime_s;
	c->readable_by = PERMISSIONS_ALL;
	for (size_t i = 0; i < c->nfiles; i++)
		permissions_restrict(&c->readable_by, &x->files[i].readable_by);
	c->names = c->readable_by;
	return 0;
}

static int dcp_load(struct checkpoint *c, const struct user_rules *rules, struct errmsg *err)
{
	struct dcp_checkpoint *x = own(c);
	int rc;

	c->shards = checkpoint_shards(c->u, c->files, c->nfiles);
	x->storage = (struct dcp_storage){ c->u, x->c.path, c->shards,
					   calloc(DCP_SMALL, sizeof(struct dcp_small)) };
	rc = c->shards && x->storage.small ? 0 : errmsg_nomem(err, c->path);
	rc = rc ?: x->nranks ? dcp_ranks_read(x, err) : dcp_safetensors_find(x, err);
	rc = rc ?:
	     dcp_model_find(&x->model, &x->metadata, &x->megatron, &x->storage, x->c.path, err) ?:
	     dcp_rows(x, rules, err);
	dcp_storage_loaded(&x->storage);
	return rc;
}

/* Nothing to load: states were read with the rows. */
static int dcp_check_states(struct checkpoint *c, bool states, struct errmsg *err)
{
	const struct dcp_checkpoint *x = own(c);

	if (states && x->rank.refused)
		return errmsg_set(err, -ENOTSUP, "%s", x->rank.refused);
	for (size_t g = 0; states && g < x->rank.ngroups; g++)
		if (x->states[g].refused)
			return errmsg_set(err, x->states[g].refused_rc, "%s", x->states[g].refused);
	return 0;
}

static int dcp_states(struct checkpoint *c, const struct param *p, const struct param_states **out,
		      struct errmsg *err)
{
	(void)c;
	(void)err;
	*out = p->states;
	return 0;
}

/* Return the state of a group by name, or NULL. */
static const struct dcp_state *find_state(const struct dcp_checkpoint *x, uint32_t group,
					  const char *name)
{
	const struct dcp_group *g = &x->model.groups[group];
	const struct dcp_state *found = NULL;

	for (size_t i = 0; i < g->nstates; i++)
		if (strcmp(g->states[i].name, name) == 0)
			found = &g->states[i];
	return found;
}

/* Return the entry of a part; NULL: the part is zeros. */
static struct dcp_entry *part_entry(const struct dcp_checkpoint *x, const struct part_run *run)
{
	const struct dcp_group *g = &x->model.groups[run->slice->group];
	const struct dcp_param *p = &g->params[run->slice->index];
	const struct dcp_state *s = find_state(x, run->slice->group, run->state->name);

	if (!s)
		return p->master;
	return s->flat ? (p->states ? p->states[s - g->states] : NULL) : s->entry;
}

static int add_range(const struct dcp_checkpoint *x, struct dcp_entry *t, uint64_t first,
		     uint64_t numel, enum dtype to, struct extent_map *out, struct gathers *gathers,
		     struct errmsg *err)
{
	const struct dcp_range r = { t, first, numel };

	if (t)
		return dcp_extents_add(&x->storage, &r, to, out, gathers, err);
	return extent_add(out, EXTENT_ZERO, numel * dtype_size(to), 0, 0, DTYPE_U8)
		       ? 0
		       : errmsg_nomem(err, x->c.path);
}

int dcp_number_extents(struct dcp_checkpoint *x, const struct dcp_state *s, struct extent_map *out,
		       struct errmsg *err)
{
	return add_range(x, s->entry, 0, s->entry->numel, s->entry->dtype, out, NULL, err);
}

/* Append a number of the group, or the module's tensor. */
static int dcp_extents(struct checkpoint *c, const struct param *p, const struct param_state *state,
		       struct extent_map *out, struct gathers *gathers, struct errmsg *err)
{
	struct dcp_checkpoint *x = own(c);
	struct dcp_entry *t = (struct dcp_entry *)p->own;

	return state ? dcp_number_extents(x, find_state(x, p->first->group, state->name), out, err)
		     : add_range(x, t, 0, t->numel, t->dtype, out, gathers, err);
}

/* Locate the chunks of all parts together. */
static int find_parts(struct dcp_checkpoint *x, const struct part_run *v, size_t n,
		      struct errmsg *err)
{
	struct dcp_range *r = calloc(n + 1, sizeof(*r));
	size_t found = 0;
	int rc;

	if (!r)
		return errmsg_nomem(err, x->c.path);
	for (size_t i = 0; i < n; i++) {
		struct dcp_entry *t = part_entry(x, &v[i]);

		if (t)
			r[found++] = (struct dcp_range){ t, v[i].first, v[i].numel };
	}
	rc = dcp_extents_find(&x->storage, r, found, err);
	free(r);
	return rc;
}

static int dcp_parts(struct checkpoint *c, const struct part_run *v, size_t n,
		     struct extent_map *out, struct gathers *gathers, struct errmsg *err)
{
	struct dcp_checkpoint *x = own(c);
	int rc = out ? 0 : find_parts(x, v, n, err);

	for (size_t i = 0; out && !rc && i < n; i++)
		rc = add_range(x, part_entry(x, &v[i]), v[i].first, v[i].numel, v[i].to, out,
			       gathers, err);
	return rc;
}

static void dcp_warn(const struct checkpoint *c, const struct errmsg_sink *to)
{
	const struct dcp_checkpoint *x = (const struct dcp_checkpoint *)c;
	const struct dcp_model *o = &x->model;
	const bool half = o->weights == DTYPE_BF16 || o->weights == DTYPE_F16;
	const char *name = c->files[c->witness].name;

	checkpoint_warn_of_steps(c, name, name, x->rank.ngroups ? x->states : NULL, true, to);
	if (x->rank_note)
		errmsg_put(to, "%s", x->rank_note);
	errmsg_list_put(&o->notes, to);
	if (o->unread)
		errmsg_put(to, "%.200s: what the optimizer has in this form is not read",
			   o->unread);
	if (!o->has_optimizer)
		errmsg_put(to, "%s", o->unread ? "the optimizer's states are zeros"
				     : "there is no optimizer: its states are zeros");
	else if (!o->refused && half)
		errmsg_put(to,
			   "there are no fp32 master weights: parameters of 16 bits are widened");
	if (o->refused)
		errmsg_put(to, "weights are those of the model: the optimizer's are not read");
	if (o->steps_differ)
		errmsg_put(to,
			"parameters of one group have made different numbers of steps: all get that of the first");
	errmsg_list_put(&x->warnings, to);
}

static void dcp_close(struct checkpoint *c)
{
	struct dcp_checkpoint *x = own(c);

	for (size_t i = 0; i < c->nfiles; i++)
		free(x->files[i].path);
	free(x->files);
	merge_rules_free(x->rules);
	arena_done(&x->arena);
	dcp_model_done(&x->model);
	dcp_metadata_done(&x->metadata);
}

const struct checkpoint_ops dcp_checkpoint_ops = {
	.size = sizeof(struct dcp_checkpoint),
	.list = dcp_list,
	.load = dcp_load,
	.check = dcp_check_states,
	.states = dcp_states,
	.extents = dcp_extents,
	.parts = dcp_parts,
	.object = dcp_object,
	.warn = dcp_warn,
	.close = dcp_close,
};
