/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads checkpoints of all kinds in the same way: the rows of a table, as the universal tree for
 * any stage shows them, or a universal tree on a disk.
 */
#include "ckpt/commands/diff.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/tags.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/state.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "ckpt/table/model.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"

#define SUFFIX ".pt" /* of a state's file */

/* List the directory of `param` in the tree on a disk, or with "" all parameters. */
static int list(const struct diff_tree *t, const char *param, struct dirlist *out,
		struct errmsg *err)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s/zero%s%s", t->path, *param ? "/" : "", param) < 0)
		return errmsg_nomem(err, NULL);
	rc = io_list(t->u, path, 0, out, err);
	free(path);
	return rc;
}

static int add_entry(struct diff_tree *t, struct diff_entry e, struct errmsg *err)
{
	if (t->n == MODEL_PARAMS_MAX)
		return errmsg_set(err, -E2BIG, "more than %u parameters", MODEL_PARAMS_MAX);
	if (!e.name || !arena_reserve(&t->arena, &t->v, t->n, &t->cap, t->n + 1, sizeof(e)))
		return errmsg_nomem(err, NULL);
	t->v[t->n++] = e;
	return 0;
}

/* Sort the entries; merge two entries of a name, a row and weights, into one. */
static void sort_entries(struct diff_tree *t)
{
	size_t n = 0;

	if (t->n)
		qsort(t->v, t->n, sizeof(*t->v), array_by_text);
	for (size_t i = 0; i < t->n; i++)
		if (!n || strcmp(t->v[n - 1].name, t->v[i].name) != 0) {
			t->v[n++] = t->v[i];
		} else {
			t->v[n - 1].row = t->v[n - 1].row ?: t->v[i].row;
			t->v[n - 1].weights = t->v[n - 1].weights ?: t->v[i].weights;
		}
	t->n = n;
}

static const struct diff_entry *find_entry(const struct diff_tree *t, const char *name)
{
	return array_find(t->v, t->n, sizeof(*t->v), name);
}

static int add_weights(struct diff_tree *t, size_t n, struct errmsg *err)
{
	int rc = checkpoint_order(t->c, err);

	for (size_t i = 0; !rc && i < n && i < t->c->norder; i++)
		rc = add_entry(t, (struct diff_entry){ .name = t->c->order[i]->name,
						       .weights = t->c->order[i] }, err);
	return rc;
}

static int open_view(struct diff_tree *t, struct errmsg *err)
{
	static const struct view_options options = { .any_stage = true };
	int rc = view_open(t->u, t->path, &options, &t->view, err);

	if (rc)
		return rc;
	t->kind = t->model ? "Hugging Face model" : "ZeRO checkpoint";
	t->c = view_checkpoint(t->view);
	if (t->model)
		return add_weights(t, t->c->nparams, err);
	rc = t->c->ops->check(t->c, true, err);
	for (size_t i = 0; !rc && i < t->c->nparams; i++)
		rc = add_entry(t, (struct diff_entry){ .name = t->c->params[i].name,
						       .row = &t->c->params[i] }, err);
	return rc;
}

/* A tree on a disk may have hidden directories. */
static int open_universal(struct diff_tree *t, const char *path, struct errmsg *err)
{
	struct dirlist l = { 0 };
	int rc;

	t->kind = "universal checkpoint";
	t->path = strdup(path);
	rc = t->path ? list(t, "", &l, err) : errmsg_nomem(err, NULL);
	for (size_t i = 0; !rc && i < l.n; i++)
		if (S_ISDIR(l.v[i].type) && l.v[i].name[0] != '.')
			rc = add_entry(t, (struct diff_entry){
				.name = arena_strdup(&t->arena, l.v[i].name) }, err);
	dirlist_done(&l);
	return rc;
}

int diff_tree_open(struct diff_tree *t, const char *path, struct errmsg *err)
{
	enum tags_choice choice;
	int rc;

	if (detect_is_universal(t->u, path)) {
		rc = open_universal(t, path, err);
	} else {
		rc = tags_choose(t->u, path, &t->path, &choice, err);
		/* Hugging Face's Trainer saves weights beside its ZeRO tag: the tag takes
		 * precedence. */
		t->model = !rc && choice == TAGS_WEIGHTS;
		rc = rc ?: open_view(t, err);
	}
	sort_entries(t);
	return rc;
}

void diff_tree_close(struct diff_tree *t)
{
	view_close(t->view);
	free(t->path);
	hashtab_done(&t->ties_by_name);
	arena_done(&t->arena);
}

int diff_tree_match(struct diff_tree *t, const struct diff_tree *other, struct errmsg *err)
{
	const int rc = other->model && t->c && !t->model ? add_weights(t, SIZE_MAX, err) : 0;

	sort_entries(t);
	return rc;
}

static bool add_one_tie(struct diff_tree *t, const char *name, const char *of)
{
	t->ties[t->nties] = (struct diff_tie){ name, of };
	return hashtab_add(&t->ties_by_name, hash_text(name), (uint32_t)t->nties++);
}

static int add_tie(struct diff_tree *t, const char *name, const char *of, struct errmsg *err)
{
	const char *a = arena_strdup(&t->arena, name);
	const char *b = arena_strdup(&t->arena, of);
	const bool room = arena_reserve(&t->arena, &t->ties, t->nties, &t->ties_cap, t->nties + 2,
					sizeof(*t->ties));

	return room && a && b && add_one_tie(t, a, b) && add_one_tie(t, b, a)
		       ? 0
		       : errmsg_nomem(err, NULL);
}

/* Add the tied names that a file of model states lists. */
static int add_ties_of(struct diff_tree *t, const char *file, struct errmsg *err)
{
	const struct value_dict *shared;
	struct ptfile pt;
	char *path;
	int rc;

	if (asprintf(&path, "%s/%s", t->path, file) < 0)
		return errmsg_nomem(err, NULL);
	rc = io_open_pt(t->u, path, NULL, &pt, err);
	free(path);
	if (rc)
		return rc;
	shared = value_pairs(value_find(pt.root, KEY_SHARED_PARAMS));
	for (size_t i = 0; !rc && shared && i < shared->n; i++) {
		const struct value_pair *pair = &shared->v[i];

		if (value_is_cstr(pair->key) && value_is_cstr(pair->val))
			rc = add_tie(t, pair->key->str.p, pair->val->str.p, err);
	}
	ptfile_close(&pt);
	return rc;
}

/* A universal checkpoint on a disk has model states beside zero/. */
static int load_ties_of_files(struct diff_tree *t, struct errmsg *err)
{
	struct dirlist l = { 0 };
	int rc = io_list(t->u, t->path, 0, &l, err);

	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < l.n; i++) {
		const struct ckname name = names_parse(l.v[i].name);

		if (!S_ISDIR(l.v[i].type) && !name.dp &&
		    (name.kind == CKPT_FILE_MODEL || name.kind == CKPT_FILE_MODEL3))
			rc = add_ties_of(t, l.v[i].name, err);
	}
	dirlist_done(&l);
	return rc;
}

static int load_ties(struct diff_tree *t, struct errmsg *err)
{
	int rc;

	if (!t->c)
		return load_ties_of_files(t, err);
	rc = checkpoint_order(t->c, err);
	for (size_t i = 0; !rc && i < t->c->norder; i++)
		if (t->c->order[i]->same)
			rc = add_tie(t, t->c->order[i]->name, t->c->order[i]->same->name, err);
	return rc;
}

/* Return the first name tied to `name`, other than `but`, that `other` has; if `other` is NULL,
 * the first such name. */
static const char *find_tied(const struct diff_tree *t, const char *name, const char *but,
			     const struct diff_tree *other)
{
	const uint64_t hash = hash_text(name);
	size_t pos = 0;
	uint32_t i;

	for (unsigned n = 0; n < DIFF_TIES_MAX && hashtab_next(&t->ties_by_name, hash, &pos, &i);
	     n++)
		if (strcmp(t->ties[i].name, name) == 0 && strcmp(t->ties[i].of, but) != 0 &&
		    (!other || find_entry(other, t->ties[i].of)))
			return t->ties[i].of;
	return NULL;
}

const struct diff_entry *diff_tree_tied(struct diff_tree *t, const char *name,
					const struct diff_tree *other)
{
	const char *of;
	struct errmsg why;

	if (!t->ties_known) {
		/* If the model states cannot be read, there are only fewer ties. */
		load_ties(t, &why);
		t->ties_known = true;
	}
	of = find_tied(t, name, name, NULL);
	of = of ? find_tied(t, name, name, other) ?: find_tied(t, of, name, other) : NULL;
	return of ? find_entry(other, of) : NULL;
}

static int add_state(struct diff_states *out, const struct diff_entry *e, const char *name,
		     size_t len, struct errmsg *err)
{
	if (len >= DIFF_STATE_LEN || out->n == DIFF_STATES_MAX)
		return errmsg_set(err, -E2BIG,
				  "%s: parameter has more than %u states, or a state's name is too long",
				  e->name, DIFF_STATES_MAX);
	memcpy(out->v[out->n], name, len);
	out->v[out->n++][len] = '\0';
	return 0;
}

int diff_tree_states(const struct diff_tree *t, const struct diff_entry *e,
		     struct diff_states *out, struct errmsg *err)
{
	const struct param_states *states = NULL;
	struct dirlist l = { 0 };
	int rc = !t->c     ? list(t, e->name, &l, err)
		 : e->row ? t->c->ops->states(t->c, e->row, &states, err)
			  : 0;

	out->n = 0;
	if (!rc && t->c && !states)
		rc = add_state(out, e, DIFF_WEIGHTS, strlen(DIFF_WEIGHTS), err);
	for (size_t i = 0; !rc && states && i < states->n; i++)
		rc = add_state(out, e, states->v[i].name, strlen(states->v[i].name), err);
	for (size_t i = 0; !rc && i < l.n; i++)
		if (l.v[i].name[0] != '.' && names_ends_with(l.v[i].name, SUFFIX))
			rc = add_state(out, e, l.v[i].name, strlen(l.v[i].name) - strlen(SUFFIX),
				       err);
	dirlist_done(&l);
	return rc;
}

static int open_file(const struct diff_tree *t, const char *param, const char *name,
		     struct state *out, struct errmsg *err)
{
	struct source src;
	char *path;
	int rc;

	if (asprintf(&path, "%s/zero/%s/%s" SUFFIX, t->path, param, name) < 0)
		return errmsg_nomem(err, NULL);
	rc = io_open(t->u, path, NULL, &src, err) ?: state_open_source(out, &src, err);
	if (rc)
		free(path);
	else
		out->path = path;
	return rc;
}

/* Open computed elements as a file.  It is read sequentially, so prefetch it, but not the bytes
 * after the tensor, such as a vocabulary's padding. */
static int open_extents(const struct checkpoint *c, const struct tensor *tensor,
			const struct extent_map *map, struct gathers *gathers, struct state *out,
			struct errmsg *err)
{
	struct bytebuf head = { 0 };
	struct source src;
	struct vfile *file = vfile_new_tensors(c->shards, &head, map, &head.len, 1, gathers, err);
	int rc = file ? vfile_source_open(&src, file, c->path, err) : -ENOMEM;

	if (rc)
		return rc;
	state_init(out, &src, tensor, 0);
	vfile_source_expect(&src, state_end(out));
	return 0;
}

/* Describe a state and find its elements, as in the universal tree for any stage. */
static int find_state(struct checkpoint *c, const struct param *p, const struct param_state *st,
		      struct tensor *t, struct extent_map *map, struct gathers *gathers,
		      struct errmsg *err)
{
	tensor_init(t, st ? st->dtype : DTYPE_F32, p->shape, p->ndim, false);
	if (p->merge.vocab && p->merge.vocab_rows != t->shape[0]) {
		t->numel = t->numel / t->shape[0] * p->merge.vocab_rows;
		t->shape[0] = p->merge.vocab_rows;
	}
	return st ? checkpoint_extents(c, p, st, map, gathers, err)
		  : checkpoint_module(c, p, DTYPE_F32, map, gathers, err);
}

/* As find_state, for weights, in the type that views use or in the model's own. */
static int find_weights(const struct diff_tree *t, const struct param *p, struct tensor *out,
			struct extent_map *map, struct gathers *gathers, struct errmsg *err)
{
	const enum dtype dtype = t->model ? p->dtype : checkpoint_dtype(p, DTYPE_F32);

	tensor_init(out, dtype, p->shape, p->ndim, false);
	return checkpoint_weights(t->c, p, dtype, map, gathers, err);
}

int diff_tree_open_state(const struct diff_tree *t, const struct diff_entry *e, const char *name,
			 struct state *out, struct errmsg *err)
{
	const struct param *weights = strcmp(name, DIFF_WEIGHTS) == 0 ? e->weights : NULL;
	const struct param_states *states = NULL;
	const struct param_state *st;
	struct extent_map map = { 0 };
	struct gathers gathers = { 0 };
	struct tensor tensor;
	int rc;

	if (!t->c)
		return open_file(t, e->name, name, out, err);
	rc = weights ? 0 : t->c->ops->states(t->c, e->row, &states, err);
	if (rc)
		return rc;
	st = states ? states->v : NULL;
	while (st && strcmp(st->name, name) != 0)
		st++; /* listed by diff_tree_states */
	if (st && st->kind != STATE_FLAT) {
		state_init_number(out, st->dtype, st->bytes);
		return 0;
	}
	rc = weights ? find_weights(t, weights, &tensor, &map, &gathers, err)
		     : find_state(t->c, e->row, st, &tensor, &map, &gathers, err);
	rc = rc ?: open_extents(t->c, &tensor, &map, &gathers, out, err);
	extent_done(&map);
	gathers_done(&gathers);
	return rc;
}
