/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ZeRO checkpoint, read as its universal tree without writing that.  The tree
 * is the one for any stage, because it records shapes and steps, which ZeRO-3's
 * own tree does not.
 *
 * In a comparison with weights alone, fp32 is taken from the weights that the
 * _hf view shows: a tree of ZeRO-3 has no buffers and frozen parameters, and
 * trees of other stages have tied names as the model keeps them, rounded to its
 * type, and vocabularies without padding.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/plan/plan.h"
#include "ckpt/states/state.h"
#include "ckpt/states/statetree_impl.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/weights/weights.h"
#include "ckpt/weights/weights_file.h"

#define WEIGHTS "fp32"

/* Index of weights by name. */
struct named {
	const char *name;
	size_t i;
};

struct zero_tree {
	struct statetree t;
	struct plan *plan;
	const struct weights *w; /* NULL: fp32 comes from the tree */
	struct named *by_name;   /* all weights, sorted */
};

static struct zero_tree *zero_of(struct statetree *t)
{
	return (struct zero_tree *)t;
}

static struct plan *plan_of(struct statetree *t)
{
	return zero_of(t)->plan;
}

/* --- weights --------------------------------------------------------------------- */

static int by_weights_name(const void *a, const void *b)
{
	const struct named *const x = a, *const y = b;

	return strcmp(x->name, y->name);
}

/* Find a weight's index. */
static bool find_weight(const struct zero_tree *z, const char *name, size_t *out)
{
	const struct named key = { .name = name }, *found = NULL;

	if (z->w)
		found = bsearch(&key, z->by_name, z->w->n, sizeof(key),
				by_weights_name);
	if (found)
		*out = found->i;
	return found;
}

static int take_weights(struct statetree *t, struct errmsg *err)
{
	struct zero_tree *const z = zero_of(t);
	const struct weights *w;
	int rc = plan_universal_weights(z->plan, &w, err);

	if (rc)
		return rc;
	z->by_name = malloc((w->n + 1) * sizeof(*z->by_name));
	if (!z->by_name)
		return errmsg_nomem(err, NULL);
	for (size_t i = 0; !rc && i < w->n; i++) {
		z->by_name[i] = (struct named){ w->v[i]->name, i };
		rc = statetree_add(t, w->v[i]->name, err);
	}
	if (rc)
		return rc;
	qsort(z->by_name, w->n, sizeof(*z->by_name), by_weights_name);
	z->w = w;
	return 0;
}

static int statetree_zero_states(struct statetree *t, const char *param,
				 struct statetree_states *out,
				 struct errmsg *err)
{
	struct plan *const p = plan_of(t);
	struct plan_entry e;
	uint64_t dir, pos = 0;
	size_t weight;
	int rc = plan_lookup(p, PLAN_ZERO, param, &dir, err);

	if (rc == -ENOENT && find_weight(zero_of(t), param, &weight))
		return statetree_add_state(out, WEIGHTS, strlen(WEIGHTS), err);
	if (rc)
		return rc;
	while ((rc = plan_next(p, dir, &pos, &e, err)) == 1) {
		rc = statetree_add_file(out, e.name, err);
		if (rc)
			break;
	}
	return rc;
}

/* --- a planned file as a source ------------------------------------------------ */

struct zero_file {
	struct vfile *v;
	uint64_t end; /* of the tensor; 0 while the file's description is read */
	struct vfile_ahead ahead;
};

/* Tensors are read from their beginning to their end.  What follows in the storage, as
 * behind a tied parameter, is not theirs. */
static void read_ahead(struct zero_file *f, size_t len, uint64_t off)
{
	const uint64_t most = readahead_window();

	if (off < f->end)
		vfile_read_ahead(f->v, &f->ahead, off, len,
				 f->end - off < most ? f->end - off : most);
}

static int read_file(const struct source *s, void *buf, size_t len,
		     uint64_t off, struct errmsg *err)
{
	struct zero_file *const f = s->ctx;
	int64_t n;

	read_ahead(f, len, off);
	n = vfile_read(f->v, buf, len, off, err);
	return n < 0 ? (int)n : 0;
}

static void statetree_zero_close_file(struct source *s)
{
	struct zero_file *const f = s->ctx;

	vfile_free(f->v);
	free(f);
}

/* Takes over `file`. */
static int source_of(const struct statetree *t, struct vfile *file,
		     struct source *out, struct errmsg *err)
{
	static const struct source_ops ops = {
		.read = read_file, .close = statetree_zero_close_file
	};
	struct zero_file *const f = calloc(1, sizeof(*f));

	if (!f) {
		vfile_free(file);
		return errmsg_nomem(err, t->path);
	}
	f->v = file;
	*out = (struct source){ .name = t->path,
				.size = vfile_size(file),
				.fd = -1,
				.ops = &ops,
				.ctx = f };
	return 0;
}

/* The state is open, and its tensor will be read. */
static void expect_tensor(const struct state *s)
{
	struct zero_file *const f = s->pt.src.ctx;

	f->end = state_end(s);
}

/* Open a weight, in the type that the views give it. */
static int open_weight(struct statetree *t, size_t weight, struct state *out,
		       struct errmsg *err)
{
	const struct zero_tree *const z = zero_of(t);
	const struct weights_file_set set = { .w = z->w, .dtype = DTYPE_F32 };
	const struct weight *const x = z->w->v[weight];
	const enum dtype dtype = weights_file_dtype(&set, weight);
	struct extent_map map = { 0 };
	struct gathers gathers = { 0 };
	struct bytebuf head = { 0 };
	struct vfile *file;
	struct source src;
	int rc = weights_add(z->w, weight, plan_zckpt(z->plan), dtype, &map,
			     &gathers, err);

	if (!rc) {
		file = vfile_new_tensors(plan_shards(z->plan), &head, &map, 1,
					 &gathers, err);
		rc = file ? source_of(t, file, &src, err) : -ENOMEM;
	}
	if (!rc) {
		struct tensor tensor;

		tensor_init(&tensor, dtype, x->shape, x->ndim, false);
		state_init(out, &src, &tensor, 0);
		expect_tensor(out);
	}
	extent_done(&map);
	gathers_done(&gathers);
	return rc;
}

static int statetree_zero_open_state(struct statetree *t, const char *param,
				     const char *name, struct state *out,
				     struct errmsg *err)
{
	struct plan *const p = plan_of(t);
	struct source src;
	struct vfile *file;
	uint64_t node;
	size_t weight;
	char *entry;
	int rc;

	if (strcmp(name, WEIGHTS) == 0 && find_weight(zero_of(t), param, &weight))
		return open_weight(t, weight, out, err);
	rc = plan_lookup(p, PLAN_ZERO, param, &node, err);
	if (rc)
		return rc;
	if (asprintf(&entry, "%s.pt", name) < 0)
		return errmsg_nomem(err, NULL);
	rc = plan_lookup(p, node, entry, &node, err);
	free(entry);
	if (!rc)
		rc = plan_file_open(p, node, &file, err);
	if (!rc)
		rc = source_of(t, file, &src, err);
	if (!rc)
		rc = state_open_source(out, &src, err);
	if (!rc)
		expect_tensor(out);
	return rc;
}

/* ------------------------------------------------------------------------------ */

static int statetree_zero_ties(struct statetree *t, struct errmsg *err)
{
	const struct weights *w;
	int rc = plan_universal_weights(plan_of(t), &w, err);

	for (size_t i = 0; !rc && i < w->n; i++)
		if (w->v[i]->same != i)
			rc = statetree_add_tie(t, w->v[i]->name,
					       w->v[w->v[i]->same]->name, err);
	return rc;
}

static void statetree_zero_close_tree(struct statetree *t)
{
	plan_close(plan_of(t));
	free(zero_of(t)->by_name);
	free(t);
}

static int statetree_zero_list(struct statetree *t, struct errmsg *err)
{
	struct plan *const p = plan_of(t);
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(p, PLAN_ZERO, &pos, &e, err)) == 1) {
		rc = plan_is_dir(p, e.node) ? statetree_add(t, e.name, err) : 0;
		if (rc)
			break;
	}
	return rc;
}

int statetree_open_zero(const char *path, struct statetree **out,
			struct errmsg *err)
{
	static const struct statetree_ops ops = {
		.kind = "ZeRO checkpoint",
		.take_weights = take_weights,
		.states = statetree_zero_states,
		.open_state = statetree_zero_open_state,
		.ties = statetree_zero_ties,
		.close = statetree_zero_close_tree
	};
	/* The files are never written, so their checksums are not needed. */
	static const struct plan_options options = { .kind = PLAN_UNIVERSAL,
						     .crc_zero = true,
						     .any_stage = true };
	struct zero_tree *const z = calloc(1, sizeof(*z));
	int rc;

	if (!z)
		return errmsg_nomem(err, NULL);
	z->t.ops = &ops;
	rc = plan_open(path, &options, &z->plan, err);
	if (!rc)
		rc = plan_check(z->plan, err);
	if (!rc)
		rc = statetree_zero_list(&z->t, err);
	if (rc)
		statetree_close(&z->t);
	else
		*out = &z->t;
	return rc;
}
