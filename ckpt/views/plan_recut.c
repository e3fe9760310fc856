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
#include "ckpt/table/tagdir.h"
#include "ckpt/views/plan_impl.h"
#include "ckpt/views/recut.h"

struct plan_recut {
	struct plan plan;
	struct recut s;
	bool copied; /* all files are copies of the checkpoint's */
};

enum { ROOT, OPTIM, MODEL };

static struct plan_recut *recut_of(struct plan *p)
{
	return (struct plan_recut *)p;
}

static enum checkpoint_object kind_of(unsigned group)
{
	return group == OPTIM ? OBJECT_OPTIMIZER : OBJECT_MODEL;
}

static int name_made(const struct plan_item *e, char out[NAME_MAX + 1])
{
	recut_name(&recut_of(e->p)->s, kind_of(e->group), e->i, out);
	return 1;
}

/* Find a file by the ranks in its name, since a directory may hold thousands. */
static int64_t find_made(const struct plan_item *dir, unsigned group, const char *name)
{
	struct plan *p = dir->p;
	const unsigned mp = p->c->tp * p->c->pp;
	const size_t n = p->groups[group].n / mp;
	const struct ckname id = names_parse(name);
	const size_t i = id.mp * n + id.dp;
	char own[NAME_MAX + 1];

	if (id.mp >= mp || id.dp >= n)
		return -1;
	recut_name(&recut_of(p)->s, kind_of(group), i, own);
	return strcmp(own, name) == 0 ? (int64_t)i : -1;
}

static void describe_made(const struct plan_item *e, struct plan_facts *out)
{
	const struct checkpoint *c = e->p->c;
	const struct tag_file *f = recut_file_of(&recut_of(e->p)->s, kind_of(e->group), e->i).old;

	if (recut_of(e->p)->copied)
		*out = plan_copy_of(f, c->files, c->shards);
	else if (f)
		out->mtime_s = f->mtime_s;
}

static struct value *lay_out_made(const struct plan_item *e, struct file_layout *d)
{
	return recut_lay_out(&recut_of(e->p)->s, kind_of(e->group), e->i, d);
}

static struct value *lay_out_expert(const struct plan_item *e, struct file_layout *d)
{
	return recut_lay_out_expert(&recut_of(e->p)->s, &e->p->c->experts[e->i], d);
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

int plan_stat_recut(const struct plan *universal, const struct view_type *type,
		    struct plan_stat *out, struct errmsg *err)
{
	const int rc = is_own_cut(universal->c, type)
			       ? 0
			       : recut_check_cut(universal->c, type->stage, err);

	if (!rc)
		plan_stat_dir(universal, &universal->c->readable_by, universal->c->mtime_s, out);
	return rc;
}

/* Lay out one file of each kind and model-parallel rank. */
static int recut_check(struct plan *p, struct errmsg *err)
{
	const unsigned mp = p->c->tp * p->c->pp;
	uint64_t size;
	int rc = 0;

	for (unsigned group = OPTIM; !recut_of(p)->copied && group <= MODEL; group++)
		for (size_t i = 0, n = p->groups[group].n; !rc && i < n; i += n / mp)
			rc = plan_file_size(p, group, i, &size, err);
	return rc;
}

static void recut_warn(struct plan *p, const struct errmsg_sink *to)
{
	if (recut_of(p)->s.warning)
		errmsg_put(to, "%s", recut_of(p)->s.warning);
}

static void recut_close(struct plan *p)
{
	recut_done(&recut_of(p)->s);
}

static int recut_make(struct plan *p, struct errmsg *err)
{
	struct plan_recut *x = recut_of(p);
	const int rc = recut_init(&x->s, p->c, p->options.type.ranks, p->options.type.stage, err);

	x->copied = rc == -ENOTSUP && is_own_cut(p->c, &p->options.type);
	if (rc && !x->copied)
		return rc;
	if (x->copied)
		x->s.stage = p->c->facts.zero3 ? 3 : 1;
	p->names = p->c->readable_by;

	const struct plan_group groups[] = {
		{ .n = recut_count(&x->s, OBJECT_OPTIMIZER),
		  .name = name_made,
		  .find = find_made,
		  .readable_by = &p->c->readable_by,
		  .describe = describe_made,
		  .lay_out = lay_out_made },
		{ .n = recut_count(&x->s, OBJECT_MODEL),
		  .name = name_made,
		  .find = find_made,
		  .readable_by = &p->c->readable_by,
		  .describe = describe_made,
		  .lay_out = lay_out_made },
		{ .n = p->c->nlayers, .files = p->c->layers },
		{ .n = p->c->nexperts,
		  .files = p->c->experts,
		  .lay_out = recut_edits_experts(&x->s) ? lay_out_expert : NULL },
	};

	plan_set_groups(p, groups, COUNT(groups));
	return 0;
}

const struct plan_view plan_recut = {
	.suffix = "_dp",
	.option = "zero",
	.takes = TAKES_RANKS,
	.ranked = true,
	.size = sizeof(struct plan_recut),
	.make = recut_make,
	.close = recut_close,
	.check = recut_check,
	.warn = recut_warn,
};
