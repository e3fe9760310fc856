/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ZeRO tag as another number of data-parallel ranks would have saved it
 * (recut.h): a tag directory with the optimizer shards and model states of those
 * ranks, and the files of a pipeline's layers and of experts, unchanged.
 */
#include <errno.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/views/view_impl.h"
#include "ckpt/views/recut.h"

struct view_recut {
	struct view view;
	struct recut s;
	bool copied; /* all files are copies of the checkpoint's */
};

enum { ROOT, OPTIM, MODEL };

static struct view_recut *recut_of(struct view *v)
{
	return (struct view_recut *)v;
}

static enum checkpoint_object kind_of(unsigned group)
{
	return group == OPTIM ? OBJECT_OPTIMIZER : OBJECT_MODEL;
}

static int name_made(const struct entry *e, char out[NAME_MAX + 1])
{
	recut_name(&recut_of(e->view)->s, kind_of(e->group), e->i, out);
	return 1;
}

/* Find a file by the ranks in its name, since a directory may hold thousands. */
static int64_t find_made(const struct entry *dir, unsigned group, const char *name)
{
	struct view *v = dir->view;
	const unsigned mp = v->c->tp * v->c->pp;
	const size_t n = v->groups[group].n / mp;
	const struct ckname id = names_parse(name);
	const size_t i = id.mp * n + id.dp;
	char own[NAME_MAX + 1];

	if (id.mp >= mp || id.dp >= n)
		return -1;
	recut_name(&recut_of(v)->s, kind_of(group), i, own);
	return strcmp(own, name) == 0 ? (int64_t)i : -1;
}

static void describe_made(const struct entry *e, struct entry_attrs *out)
{
	const struct checkpoint *c = e->view->c;
	const struct ckpt_file *f = recut_file_of(&recut_of(e->view)->s, kind_of(e->group), e->i).old;

	if (recut_of(e->view)->copied)
		*out = view_copy_of(f, c->files, c->shards);
	else if (f)
		out->mtime_s = f->mtime_s;
}

static struct value *lay_out_made(const struct entry *e, struct file_layout *d)
{
	return recut_lay_out(&recut_of(e->view)->s, kind_of(e->group), e->i, d);
}

static struct value *lay_out_expert(const struct entry *e, struct file_layout *d)
{
	return recut_lay_out_expert(&recut_of(e->view)->s, &e->view->c->experts[e->i], d);
}

/* Are the view's ranks those that saved the checkpoint?  Then its files are served unchanged,
 * whatever they contain, unless some of their tensors are in separate files (NVMe). */
static bool is_own_cut(const struct checkpoint *c, const struct view_type *t)
{
	const size_t mp = c->tp * c->pp, models = mp * (c->facts.zero3 ? c->dp : 1);

	return t->ranks == c->dp && (!t->stage || t->stage == c->facts.stage) &&
	       checkpoint_file(c, OBJECT_OPTIMIZER, 0, 0) &&
	       c->nfiles == mp * c->dp + models + c->nlayers + c->nexperts;
}

int view_stat_recut(const struct view *universal, const struct view_type *type,
		    struct view_stat *out, struct errmsg *err)
{
	const int rc = is_own_cut(universal->c, type)
			       ? 0
			       : recut_check_cut(universal->c, type->stage, err);

	if (!rc)
		view_stat_dir(universal, &universal->c->readable_by, universal->c->mtime_s, out);
	return rc;
}

/* Lay out one file of each kind and model-parallel rank. */
static int recut_check(struct view *v, struct errmsg *err)
{
	const unsigned mp = v->c->tp * v->c->pp;
	uint64_t size;
	int rc = 0;

	for (unsigned group = OPTIM; !recut_of(v)->copied && group <= MODEL; group++)
		for (size_t i = 0, n = v->groups[group].n; !rc && i < n; i += n / mp)
			rc = view_file_size(v, group, i, &size, err);
	return rc;
}

static void recut_warn(struct view *v, const struct errmsg_sink *to)
{
	if (recut_of(v)->s.warning)
		errmsg_put(to, "%s", recut_of(v)->s.warning);
}

static void recut_close(struct view *v)
{
	recut_done(&recut_of(v)->s);
}

static int recut_make(struct view *v, struct errmsg *err)
{
	struct view_recut *x = recut_of(v);
	const int rc = recut_init(&x->s, v->c, v->options.type.ranks, v->options.type.stage, err);

	x->copied = rc == -ENOTSUP && is_own_cut(v->c, &v->options.type);
	if (rc && !x->copied)
		return rc;
	if (x->copied)
		x->s.stage = v->c->facts.zero3 ? 3 : 1;
	v->names = v->c->readable_by;

	const struct entry_group groups[] = {
		{ .n = recut_count(&x->s, OBJECT_OPTIMIZER),
		  .name = name_made,
		  .find = find_made,
		  .readable_by = &v->c->readable_by,
		  .attrs = describe_made,
		  .lay_out = lay_out_made },
		{ .n = recut_count(&x->s, OBJECT_MODEL),
		  .name = name_made,
		  .find = find_made,
		  .readable_by = &v->c->readable_by,
		  .attrs = describe_made,
		  .lay_out = lay_out_made },
		{ .n = v->c->nlayers, .files = v->c->layers },
		{ .n = v->c->nexperts,
		  .files = v->c->experts,
		  .lay_out = recut_edits_experts(&x->s) ? lay_out_expert : NULL },
	};

	view_set_groups(v, groups, COUNT(groups));
	return 0;
}

const struct view_ops view_recut = {
	.suffix = "_dp",
	.option = "zero",
	.takes = TAKES_RANKS,
	.ranked = true,
	.size = sizeof(struct view_recut),
	.make = recut_make,
	.close = recut_close,
	.check = recut_check,
	.warn = recut_warn,
};
