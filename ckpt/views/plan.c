/* SPDX-License-Identifier: Apache-2.0 */
/* Opens plans of all kinds.  See plan_impl.h for the interface of a kind, and plan_tree.c for the
 * tree. */
#include "ckpt/views/plan.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/attrs.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/detect.h"
#include "ckpt/foreign/loaders.h"
#include "ckpt/table/merge_rules.h"
#include "ckpt/views/plan_impl.h"

/* Open a plan of a checkpoint.  If `owned`, the plan takes the checkpoint over, and closes it on
 * failure. */
static int open_view(struct checkpoint *c, bool owned, const struct plan_options *options,
		     struct plan **out, struct errmsg *err)
{
	const struct plan_view *view = plan_views[options->type.kind];
	/* A directory of a run may have turned into a Hugging Face directory. */
	const bool refused = !c->ranks && view->takes & TAKES_RANKS;
	struct plan *p = refused ? NULL : calloc(1, view->size);
	int rc;

	assert(view->size >= sizeof(*p));
	if (!p) {
		rc = refused ? errmsg_set(err, -ENOTSUP,
					  "%s: Hugging Face weights are no ZeRO checkpoint, which"
					  " ranks could share: the universal tree starts a run",
					  c->path)
			     : errmsg_nomem(err, c->path);
		if (owned)
			checkpoint_close(c);
		return rc;
	}
	*p = (struct plan){
		.view = view, .options = *options, .c = c, .owns = owned, .names = c->names
	};
	rc = view->make(p, err);
	if (rc)
		plan_close(p);
	else
		*out = p;
	return rc;
}

int plan_open_listed(struct uckpt *u, const char *path, enum dir_kind kind,
		     const struct dirlist *names, const struct plan_options *options,
		     struct plan **out, struct errmsg *err)
{
	struct checkpoint *c;
	const int rc = loaders_open(u, path, kind, names, options->rules, &c, err);

	return rc ?: open_view(c, true, options, out, err);
}

int plan_open(struct uckpt *u, const char *path, const struct plan_options *options,
	      struct plan **out, struct errmsg *err)
{
	struct dirlist names = { 0 };
	const enum dir_kind kind = detect(u, path, &names);
	const int rc = plan_open_listed(u, path, kind, &names, options, out, err);

	dirlist_done(&names);
	return rc;
}

int plan_open_other(struct plan *p, const struct plan_options *options, struct plan **out,
		    struct errmsg *err)
{
	return open_view(p->c, false, options, out, err);
}

int plan_open_derived(struct plan *p, const struct view_type *type, struct plan **out,
		      struct errmsg *err)
{
	struct plan_options options = p->options;

	options.type = *type;
	return plan_open_other(p, &options, out, err);
}

void plan_close(struct plan *p)
{
	if (!p)
		return;
	plan_forget_files(p);
	p->view->close(p);
	if (p->owns)
		checkpoint_close(p->c);
	free(p);
}

int plan_check(struct plan *p, struct errmsg *err)
{
	return p->view->check ? p->view->check(p, err) : 0;
}

/* A pattern without a match means that the merge rules are wrong.  No rules apply to a re-cut,
 * which handles each model-parallel rank separately. */
static int check_patterns(const struct plan *p, struct errmsg *err)
{
	size_t pos = 0, n = 0;
	const char *text, *first = NULL;
	char more[32] = "";

	if (!p->c->rules || p->options.type.kind == PLAN_RECUT)
		return 0;
	for (; (text = merge_rules_next_unused(p->c->rules, &pos)); n++)
		first = first ?: text;
	if (!first)
		return 0;
	if (n > 1)
		snprintf(more, sizeof(more), " and %zu more", n - 1);
	return errmsg_set(err, -ENOTSUP, "%s: a pattern of merge rules matches no parameter: %s%s"
			  " (no_strict ignores such patterns)",
			  checkpoint_path(p->c, OBJECT_MODEL, 0, 0), first, more);
}

int plan_prove(struct plan *p, bool lenient, struct errmsg *err)
{
	const int rc = lenient ? 0 : check_patterns(p, err);

	return rc ?: plan_check(p, err) ?:
	       p->view == &plan_universal ? checkpoint_check_rows(p->c, false, err) : 0;
}

int plan_check_files(struct plan *p, struct errmsg *err)
{
	const int rc = plan_check(p, err);

	return rc || !p->c->ops->verify ? rc : p->c->ops->verify(p->c, err);
}

void plan_warm(struct plan *p)
{
	if (p->view->warm)
		p->view->warm(p);
}

void plan_warn(struct plan *p, const struct errmsg_sink *to)
{
	/* Only the plan that owns the checkpoint warns of it, for all its views. */
	if (p->c->left && p->owns)
		errmsg_put(to, "%s", p->c->left);
	/* The universal tree's warnings about a foreign source; other views show them only where
	 * that tree is not shown. */
	if (p->owns && p->view != &plan_universal)
		errmsg_list_put(&p->c->notes, to);
	plan_lack(p, to);
	if (p->view->warn)
		p->view->warn(p, to);
}

void plan_lack(struct plan *p, const struct errmsg_sink *to)
{
	if (p->view->lack)
		p->view->lack(p, to);
}

struct checkpoint *plan_checkpoint(struct plan *p)
{
	return p->c;
}
