/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ZeRO checkpoint: the files of its universal tree, none of which exists.
 * They are those for engines of any stage, which tell shapes and steps also
 * where the stage's own do not.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/errmsg.h"
#include "ckpt/plan.h"
#include "ckpt/plan_universal.h"
#include "ckpt/source.h"
#include "ckpt/state.h"
#include "ckpt/statetree_impl.h"
#include "ckpt/vfile.h"
#include "ckpt/weights.h"

struct zero_tree {
	struct statetree t;
	struct plan *plan;
};

static struct plan *plan_of(struct statetree *t)
{
	return ((struct zero_tree *)t)->plan;
}

static int states(struct statetree *t, const char *param,
		  struct statetree_states *out, struct errmsg *err)
{
	struct plan *const p = plan_of(t);
	struct plan_entry e;
	uint64_t dir, pos = 0;
	int rc = plan_lookup(p, PLAN_ZERO, param, &dir, err);

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

static int read_file(const struct source *s, void *buf, size_t len,
		     uint64_t off, struct errmsg *err)
{
	const int64_t n = vfile_read(s->ctx, buf, len, off, err);

	return n < 0 ? (int)n : 0;
}

static void close_file(struct source *s)
{
	vfile_free(s->ctx);
}

static int open_state(struct statetree *t, const char *param, const char *name,
		      struct state *out, struct errmsg *err)
{
	static const struct source_ops ops = { .read = read_file,
					       .close = close_file };
	struct plan *const p = plan_of(t);
	struct source src = { .name = t->path, .fd = -1, .ops = &ops };
	struct vfile *file;
	uint64_t node;
	char *entry;
	int rc = plan_lookup(p, PLAN_ZERO, param, &node, err);

	if (rc)
		return rc;
	if (asprintf(&entry, "%s.pt", name) < 0)
		return errmsg_set(err, -ENOMEM, "out of memory");
	rc = plan_lookup(p, node, entry, &node, err);
	free(entry);
	if (!rc)
		rc = plan_file_open(p, node, &file, err);
	if (rc)
		return rc;
	src.ctx = file;
	src.size = vfile_size(file);
	return state_open_source(out, &src, err);
}

/* ------------------------------------------------------------------------------ */

static int ties(struct statetree *t, struct errmsg *err)
{
	const struct weights *w;
	int rc = plan_universal_weights(plan_of(t), &w, err);

	for (size_t i = 0; !rc && i < w->n; i++)
		if (w->v[i]->same != i)
			rc = statetree_add_tie(t, w->v[i]->name,
					       w->v[w->v[i]->same]->name, err);
	return rc;
}

static void close_tree(struct statetree *t)
{
	plan_close(plan_of(t));
	free(t);
}

static int list(struct statetree *t, struct errmsg *err)
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
	static const struct statetree_ops ops = { .kind = "ZeRO checkpoint",
						  .states = states,
						  .open_state = open_state,
						  .ties = ties,
						  .close = close_tree };
	/* Nobody looks at the checksums of files that are not there. */
	static const struct plan_options options = { .kind = PLAN_UNIVERSAL,
						     .crc_zero = true,
						     .any_stage = true };
	struct zero_tree *const z = calloc(1, sizeof(*z));
	int rc;

	if (!z)
		return errmsg_set(err, -ENOMEM, "out of memory");
	z->t.ops = &ops;
	rc = plan_open(path, &options, &z->plan, err);
	if (!rc)
		rc = plan_check(z->plan, err);
	if (!rc)
		rc = list(&z->t, err);
	if (rc)
		statetree_close(&z->t);
	else
		*out = &z->t;
	return rc;
}
