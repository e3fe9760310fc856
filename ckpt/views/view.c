/* SPDX-License-Identifier: Apache-2.0 */
/* Opens views of all kinds.  See view_impl.h for the interface of a kind, and view_tree.c for the
 * tree. */
#include "ckpt/views/view.h"

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
#include "ckpt/views/view_impl.h"

/* Open a view of a checkpoint.  If `owned`, the view takes the checkpoint over, and closes it on
 * failure. */
static int open_view(struct checkpoint *c, bool owned, const struct view_options *options,
		     struct view **out, struct errmsg *err)
{
	const struct view_ops *view = all_views[options->type.kind];
	/* A directory of a run may have turned into a Hugging Face directory. */
	const bool refused = !c->ranks && view->takes & TAKES_RANKS;
	struct view *v = refused ? NULL : calloc(1, view->size);
	int rc;

	assert(view->size >= sizeof(*v));
	if (!v) {
		rc = refused ? errmsg_set(err, -ENOTSUP,
					  "%s: Hugging Face weights are no ZeRO checkpoint, which"
					  " ranks could share: the universal tree starts a run",
					  c->path)
			     : errmsg_nomem(err, c->path);
		if (owned)
			checkpoint_close(c);
		return rc;
	}
	*v = (struct view){
		.ops = view, .options = *options, .c = c, .owns = owned, .names = c->names
	};
	rc = view->make(v, err);
	if (rc)
		view_close(v);
	else
		*out = v;
	return rc;
}

int view_open_listed(struct uckpt *u, const char *path, enum dir_kind kind,
		     const struct dirlist *names, const struct view_options *options,
		     struct view **out, struct errmsg *err)
{
	struct checkpoint *c;
	const int rc = loaders_open(u, path, kind, names, options->rules, &c, err);

	return rc ?: open_view(c, true, options, out, err);
}

int view_open(struct uckpt *u, const char *path, const struct view_options *options,
	      struct view **out, struct errmsg *err)
{
	struct dirlist names = { 0 };
	const enum dir_kind kind = detect(u, path, &names);
	const int rc = view_open_listed(u, path, kind, &names, options, out, err);

	dirlist_done(&names);
	return rc;
}

int view_open_other(struct view *v, const struct view_options *options, struct view **out,
		    struct errmsg *err)
{
	return open_view(v->c, false, options, out, err);
}

int view_open_derived(struct view *v, const struct view_type *type, struct view **out,
		      struct errmsg *err)
{
	struct view_options options = v->options;

	options.type = *type;
	return view_open_other(v, &options, out, err);
}

void view_close(struct view *v)
{
	if (!v)
		return;
	view_forget_files(v);
	v->ops->close(v);
	if (v->owns)
		checkpoint_close(v->c);
	free(v);
}

int view_check(struct view *v, struct errmsg *err)
{
	return v->ops->check ? v->ops->check(v, err) : 0;
}

/* A pattern without a match means that the merge rules are wrong.  No rules apply to a re-cut,
 * which handles each model-parallel rank separately. */
static int check_patterns(const struct view *v, struct errmsg *err)
{
	size_t pos = 0, n = 0;
	const char *text, *first = NULL;
	char more[32] = "";

	if (!v->c->rules || v->options.type.kind == VIEW_RECUT)
		return 0;
	for (; (text = merge_rules_next_unused(v->c->rules, &pos)); n++)
		first = first ?: text;
	if (!first)
		return 0;
	if (n > 1)
		snprintf(more, sizeof(more), " and %zu more", n - 1);
	return errmsg_set(err, -ENOTSUP, "%s: a pattern of merge rules matches no parameter: %s%s"
			  " (no_strict ignores such patterns)",
			  checkpoint_path(v->c, OBJECT_MODEL, 0, 0), first, more);
}

int view_prove(struct view *v, bool lenient, struct errmsg *err)
{
	const int rc = lenient ? 0 : check_patterns(v, err);

	return rc ?: view_check(v, err) ?:
	       v->ops == &view_universal ? checkpoint_check_rows(v->c, false, err) : 0;
}

int view_check_files(struct view *v, struct errmsg *err)
{
	const int rc = view_check(v, err);

	return rc || !v->c->ops->verify ? rc : v->c->ops->verify(v->c, err);
}

void view_prefetch(struct view *v)
{
	if (v->ops->warm)
		v->ops->warm(v);
}

void view_warn(struct view *v, const struct errmsg_sink *to)
{
	/* Only the view that owns the checkpoint warns of it, for all its views. */
	if (v->c->left && v->owns)
		errmsg_put(to, "%s", v->c->left);
	/* The universal tree's warnings about a foreign source; other views show them only where
	 * that tree is not shown. */
	if (v->owns && v->ops != &view_universal)
		errmsg_list_put(&v->c->notes, to);
	view_lack(v, to);
	if (v->ops->warn)
		v->ops->warn(v, to);
}

void view_lack(struct view *v, const struct errmsg_sink *to)
{
	if (v->ops->lack)
		v->ops->lack(v, to);
}

struct checkpoint *view_checkpoint(struct view *v)
{
	return v->c;
}
