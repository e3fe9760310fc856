/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of all kinds, read alike.  A ZeRO checkpoint is read as its
 * universal tree for any stage, because that tree records shapes and steps,
 * which ZeRO-3's own does not.
 */
#include "ckpt/diff/diff.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/kinds.h"
#include "ckpt/dirs/tags.h"
#include "ckpt/files/files.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/state.h"
#include "ckpt/io/io.h"
#include "ckpt/model/model.h"
#include "ckpt/pickle/value.h"
#include "ckpt/plan/plan.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile.h"

/* List zero/, or the directory of `param` there. */
static int list(const struct diff_tree *t, const char *param,
		struct dirlist *out, struct errmsg *err)
{
	uint64_t dir = PLAN_ZERO, pos = 0;
	struct plan_entry e;
	char *path;
	int rc;

	if (!t->plan) {
		if (asprintf(&path, "%s/zero%s%s", t->path, *param ? "/" : "",
			     param) < 0)
			return errmsg_nomem(err, NULL);
		rc = io_list(t->u, path, 0, out, err);
		free(path);
		return rc;
	}
	rc = plan_find(t->plan, dir, param, &dir, err);
	while (!rc && (rc = plan_next(t->plan, dir, &pos, &e, err)) == 1)
		rc = dirlist_add(out, e.name,
				 plan_is_dir(t->plan, e.node) ? S_IFDIR : S_IFREG,
				 0)
			     ? errmsg_nomem(err, NULL)
			     : 0;
	return rc;
}

static int add_entry(struct diff_tree *t, const char *name, size_t weight,
		     struct errmsg *err)
{
	const struct diff_entry e = { arena_strdup(&t->arena, name), weight };

	if (t->n == MODEL_PARAMS_MAX)
		return errmsg_set(err, -E2BIG, "more than %u parameters",
				  MODEL_PARAMS_MAX);
	if (!e.name || !arena_reserve(&t->arena, &t->v, t->n, &t->cap, t->n + 1,
				      sizeof(e)))
		return errmsg_nomem(err, NULL);
	t->v[t->n++] = e;
	return 0;
}

/* Add the parameters of a tree; one on a disk may have hidden directories. */
static int add_params(struct diff_tree *t, struct errmsg *err)
{
	struct dirlist l = { 0 };
	const struct checkpoint *c = t->plan ? plan_checkpoint(t->plan) : NULL;
	int rc = c ? 0 : list(t, "", &l, err);

	for (size_t i = 0; !rc && c && i < c->nparams; i++)
		rc = add_entry(t, c->params[i].name, DIFF_NO_WEIGHT, err);
	for (size_t i = 0; !rc && i < l.n; i++)
		if (S_ISDIR(l.v[i].type) && l.v[i].name[0] != '.')
			rc = add_entry(t, l.v[i].name, DIFF_NO_WEIGHT, err);
	dirlist_done(&l);
	return rc;
}

static int by_name_weights_first(const void *a, const void *b)
{
	const struct diff_entry *x = a, *y = b;

	return array_by_text(a, b) ?: (x->weight > y->weight) -
					      (x->weight < y->weight);
}

/* Sort the entries and drop duplicates. */
static void sort_entries(struct diff_tree *t)
{
	size_t n = 0;

	if (t->n)
		qsort(t->v, t->n, sizeof(*t->v), by_name_weights_first);
	for (size_t i = 0; i < t->n; i++)
		if (!n || strcmp(t->v[n - 1].name, t->v[i].name) != 0)
			t->v[n++] = t->v[i];
	t->n = n;
}

static const struct diff_entry *find_entry(const struct diff_tree *t,
					   const char *name)
{
	return array_find(t->v, t->n, sizeof(*t->v), name);
}

/* Return the index of a weight, or DIFF_NO_WEIGHT. */
static size_t find_weight(const struct diff_tree *t, const char *name)
{
	const struct diff_entry *e = find_entry(t, name);

	return e ? e->weight : DIFF_NO_WEIGHT;
}

static int add_weights(struct diff_tree *t, size_t n, struct errmsg *err)
{
	struct checkpoint *c = plan_checkpoint(t->plan);
	int rc = checkpoint_order(c, err);

	for (size_t i = 0; !rc && i < n && i < c->norder; i++)
		rc = add_entry(t, c->order[i]->name, i, err);
	return rc;
}

static int open_plan(struct diff_tree *t, struct errmsg *err)
{
	/* The files are never written, so their checksums are not needed. */
	static const struct plan_options options = { .crc_zero = true,
						     .any_stage = true };
	int rc;

	t->kind = t->model ? "Hugging Face model" : "ZeRO checkpoint";
	rc = plan_open(t->u, t->path, &options, &t->plan, err);
	if (rc)
		return rc;
	return t->model ? add_weights(t, plan_checkpoint(t->plan)->nparams, err)
			: plan_check(t->plan, err) ?: add_params(t, err);
}

static int open_universal(struct diff_tree *t, const char *path,
			  struct errmsg *err)
{
	t->kind = "universal checkpoint";
	t->path = strdup(path);
	return t->path ? add_params(t, err) : errmsg_nomem(err, NULL);
}

int diff_tree_open(struct diff_tree *t, const char *path, struct errmsg *err)
{
	enum tags_choice choice;
	int rc;

	if (kinds_is_universal(t->u, path)) {
		rc = open_universal(t, path, err);
	} else {
		rc = tags_choose(t->u, path, &t->path, &choice, err);
		/* Hugging Face's Trainer saves weights beside its ZeRO tag: the
		 * tag goes first. */
		t->model = !rc && choice == TAGS_WEIGHTS;
		rc = rc ?: open_plan(t, err);
	}
	sort_entries(t);
	return rc;
}

void diff_tree_close(struct diff_tree *t)
{
	plan_close(t->plan);
	free(t->path);
	hashtab_done(&t->ties_by_name);
	arena_done(&t->arena);
}

int diff_tree_match(struct diff_tree *t, const struct diff_tree *other,
		    struct errmsg *err)
{
	int rc;

	if (!other->model || !t->plan || t->model)
		return 0;
	rc = add_weights(t, SIZE_MAX, err);
	sort_entries(t);
	return rc;
}

static bool add_one_tie(struct diff_tree *t, const char *name, const char *of)
{
	t->ties[t->nties] = (struct diff_tie){ name, of };
	return hashtab_add(&t->ties_by_name, hash_text(name), (uint32_t)t->nties++);
}

static int add_tie(struct diff_tree *t, const char *name, const char *of,
		   struct errmsg *err)
{
	const char *a = arena_strdup(&t->arena, name);
	const char *b = arena_strdup(&t->arena, of);

	return a && b &&
			       arena_reserve(&t->arena, &t->ties, t->nties,
					     &t->ties_cap, t->nties + 2,
					     sizeof(*t->ties)) &&
			       add_one_tie(t, a, b) && add_one_tie(t, b, a)
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
	rc = files_open_pt(t->u, path, NULL, &pt, err);
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
		    (name.kind == TAG_FILE_MODEL || name.kind == TAG_FILE_MODEL3))
			rc = add_ties_of(t, l.v[i].name, err);
	}
	dirlist_done(&l);
	return rc;
}

static int load_ties(struct diff_tree *t, struct errmsg *err)
{
	struct checkpoint *c;
	int rc;

	if (!t->plan)
		return load_ties_of_files(t, err);
	c = plan_checkpoint(t->plan);
	rc = checkpoint_order(c, err);
	for (size_t i = 0; !rc && i < c->norder; i++)
		if (c->order[i]->same)
			rc = add_tie(t, c->order[i]->name, c->order[i]->same->name, err);
	return rc;
}

/* Return the first name tied to `name`, other than `but`, that `other` has; or without
 * `other`, the first. */
static const char *find_tied(const struct diff_tree *t, const char *name,
			     const char *but, const struct diff_tree *other)
{
	const uint64_t hash = hash_text(name);
	size_t pos = 0;
	uint32_t i;

	for (unsigned n = 0; n < DIFF_TIES_MAX &&
			     hashtab_next(&t->ties_by_name, hash, &pos, &i); n++)
		if (strcmp(t->ties[i].name, name) == 0 &&
		    strcmp(t->ties[i].of, but) != 0 &&
		    (!other || find_entry(other, t->ties[i].of)))
			return t->ties[i].of;
	return NULL;
}

const char *diff_tree_tied(struct diff_tree *t, const char *name,
			   const struct diff_tree *other)
{
	const char *of;
	struct errmsg why;

	if (!t->ties_known) {
		/* If the model states cannot be read, there are fewer ties. */
		load_ties(t, &why);
		t->ties_known = true;
	}
	of = find_tied(t, name, name, NULL);
	return of ? find_tied(t, name, name, other) ?: find_tied(t, of, name, other)
		  : NULL;
}

int diff_tree_states(const struct diff_tree *t, const char *param,
		     struct dirlist *out, struct errmsg *err)
{
	const int rc = t->model ? -ENOENT : list(t, param, out, err);

	if (rc != -ENOENT || find_weight(t, param) == DIFF_NO_WEIGHT)
		return rc;
	return dirlist_add(out, DIFF_WEIGHTS DIFF_SUFFIX, S_IFREG, 0)
		       ? errmsg_nomem(err, NULL)
		       : 0;
}

static int open_file(const struct diff_tree *t, const char *param,
		     const char *name, struct state *out, struct errmsg *err)
{
	struct source src;
	char *path;
	int rc;

	if (asprintf(&path, "%s/zero/%s/%s" DIFF_SUFFIX, t->path, param, name) < 0)
		return errmsg_nomem(err, NULL);
	rc = io_open(t->u, path, NULL, &src, err);
	if (!rc)
		rc = state_open_source(out, &src, err);
	if (rc)
		free(path);
	else
		out->path = path;
	return rc;
}

/* Virtual files are read as sources.  The tensor of an open state is read from front to
 * back, so it is read ahead; bytes that follow in the storage, as behind a tied
 * parameter, are not. */
static void expect_tensor(struct state *s)
{
	vfile_source_expect(&s->pt.src, state_end(s));
}

static int open_planned(struct plan *p, const char *param, const char *name,
			struct state *out, struct errmsg *err)
{
	struct source src;
	struct vfile *file;
	uint64_t node;
	char *entry;
	int rc;

	if (asprintf(&entry, "%s" DIFF_SUFFIX, name) < 0)
		return errmsg_nomem(err, NULL);
	rc = plan_find(p, PLAN_ZERO, param, &node, err)
		     ?: plan_lookup(p, node, entry, &node, err)
		     ?: plan_file_open(p, node, &file, err)
		     ?: vfile_source_open(&src, file, plan_checkpoint(p)->path, err)
		     ?: state_open_source(out, &src, err);
	free(entry);
	if (!rc)
		expect_tensor(out);
	return rc;
}

/* Open a weight of a ZeRO checkpoint in the type that the views give it, of a model in its
 * own. */
static int open_weight(const struct diff_tree *t, size_t weight, struct state *out,
		       struct errmsg *err)
{
	struct checkpoint *c = plan_checkpoint(t->plan);
	const struct param *x = c->order[weight];
	const enum dtype dtype = t->model ? x->dtype : checkpoint_dtype(x, DTYPE_F32);
	struct extent_map map = { 0 };
	struct gathers gathers = { 0 };
	struct bytebuf head = { 0 };
	struct tensor tensor;
	struct vfile *file;
	struct source src;
	int rc = checkpoint_weights(c, x, dtype, &map, &gathers, err);

	if (!rc) {
		file = vfile_new_tensors(c->shards, &head, &map, &head.len, 1, &gathers, err);
		rc = file ? vfile_source_open(&src, file, c->path, err) : -ENOMEM;
	}
	if (!rc) {
		tensor_init(&tensor, dtype, x->shape, x->ndim, false);
		state_init(out, &src, &tensor, 0);
		expect_tensor(out);
	}
	extent_done(&map);
	gathers_done(&gathers);
	return rc;
}

int diff_tree_open_state(struct diff_tree *t, const char *param,
			 const char *name, struct state *out, struct errmsg *err)
{
	const size_t weight = strcmp(name, DIFF_WEIGHTS) == 0
				      ? find_weight(t, param)
				      : DIFF_NO_WEIGHT;

	if (!t->plan)
		return open_file(t, param, name, out, err);
	return weight == DIFF_NO_WEIGHT
		       ? open_planned(t->plan, param, name, out, err)
		       : open_weight(t, weight, out, err);
}
