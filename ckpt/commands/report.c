/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports of all problems of a checkpoint.  A mount stops at the first one, but a user
 * who repairs or copies a checkpoint again needs the whole list, so every file is read,
 * whether or not others are damaged.
 *
 * Several checks may find the same problem: a shard that cannot be read affects every
 * parameter in it.  It is listed once.  Messages name the file and the place, so equal
 * texts mean the same problem.
 */
#include "ckpt/commands/report.h"

#include <assert.h>
#include <cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/commands/settings.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/io/roots.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/views/view.h"
#include "ckpt/views/recut.h"

/* At most this many tags are named. */
#define NAMED_MAX 16

void notes_add(struct notes *l, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = array_reserve(&l->v, &l->cap, l->n + 1, sizeof(*l->v)) ? vasprintf(&l->v[l->n], fmt, ap)
								   : -1;
	va_end(ap);
	if (n < 0)
		l->failed = true;
	else
		l->n++;
}

bool notes_have(const struct notes *l, const char *text)
{
	for (size_t i = 0; i < l->n; i++)
		if (strcmp(l->v[i], text) == 0)
			return true;
	return false;
}

void notes_add_new(void *notes, const char *text)
{
	if (*text && !notes_have(notes, text))
		notes_add(notes, "%s", text);
}

void notes_take(struct notes *l, struct notes *from)
{
	assert(from != l);
	for (size_t i = 0; i < from->n; i++)
		notes_add_new(l, from->v[i]);
	l->failed |= from->failed;
	notes_done(from);
}

void notes_add_json(const struct notes *l, cJSON *object, const char *key)
{
	cJSON *list = cJSON_AddArrayToObject(object, key);

	for (size_t i = 0; list && i < l->n; i++)
		cJSON_AddItemToArray(list, cJSON_CreateString(l->v[i]));
}

static void add_lines(struct bytebuf *text, const struct notes *l, const char *kind)
{
	for (size_t i = 0; i < l->n; i++) {
		bytebuf_add_format(text, "%s: ", kind);
		bytebuf_add_shown(text, l->v[i]);
		bytebuf_add_str(text, "\n");
	}
}

void notes_done(struct notes *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i]);
	free(l->v);
	*l = (struct notes){ 0 };
}

/* Name the tags in directories of the run, if there are at least `min`. */
static void name_tags_below(struct report *r, const char *run, size_t min)
{
	struct bytebuf names = { 0 };
	struct tag_list tags;

	if (tags_list(r->u, run, true, &tags, NULL))
		return;
	for (size_t i = 0; i < tags.n && i < NAMED_MAX; i++) {
		bytebuf_add_str(&names, i ? ", " : "");
		bytebuf_add_str(&names, tags.v[i].name);
	}
	bytebuf_add_u8(&names, 0);
	if (tags.n >= min && !names.failed)
		notes_add(&r->warnings, "%s: tags in directories below: %s%s", run, names.data,
			  tags.n > NAMED_MAX ? ", ..." : "");
	bytebuf_done(&names);
	tags_done(&tags);
}

/* Warn if `run` may mean a tag other than the chosen one. */
static void warn_of_choice(struct report *r, const char *run)
{
	struct errmsg why = { "" };

	if (r->choice == TAGS_BELOW || r->choice == TAGS_WEIGHTS)
		name_tags_below(r, run, r->choice == TAGS_BELOW ? 2 : 1);
	if (tags_ignored_latest(r->u, run, r->choice, &why))
		notes_add(&r->warnings, "%s", why.text);
}

int report_open(struct report *r, const char *const *paths, size_t n, unsigned flags,
		struct errmsg *err)
{
	static const struct view_options options = { .crc_zero = true };
	const struct errmsg_sink found = { notes_add_new, &r->problems };
	struct errmsg why = { "" };
	int rc = roots_unite(r->u, paths, n, false, &r->path, err)
			 ?: tags_choose(r->u, r->path, &r->dir, &r->choice, err);

	if (rc)
		return rc;
	r->json = flags & (UCKPT_JSON | UCKPT_HTML) ? cJSON_CreateObject() : NULL;
	warn_of_choice(r, r->path);
	rc = view_open(r->u, r->dir, &options, &r->view, &why);
	if (!rc) {
		r->c = view_checkpoint(r->view);
		return 0;
	}
	notes_add_new(&r->problems, why.text);
	if (rc == -EBADMSG && detect(r->u, r->dir, NULL) != DIR_DCP)
		zero_dir_find_missing(r->u, r->dir, &found);
	return 0;
}

/* The forms of all views; the first, the universal one, also occurs for any stage. */
struct report_form report_form(size_t i)
{
	struct report_form f = { .kind = i ? (enum view_kind)(i - 1) : 0, .any_stage = i == 1 };

	snprintf(f.options, sizeof(f.options), "--view %s%s", all_views[f.kind]->option,
		 f.any_stage ? " --stage any" : "");
	return f;
}

/* Use twice the ranks, so that every file is cut; expert parallelism requires a multiple of the old
 * number. */
static unsigned new_ranks(const struct report *r)
{
	const unsigned ranks = r->c->dp;

	return ranks > RECUT_RANKS_MAX        ? RECUT_RANKS_MAX
	       : ranks <= RECUT_RANKS_MAX / 2 ? 2 * ranks
					      : ranks;
}

int report_open_form(const struct report *r, const struct report_form *f, struct view **out,
		     struct errmsg *err)
{
	const struct settings *s = settings_of(r->u);
	struct view_options options = { .type.kind = f->kind,
					.crc_zero = true,
					.any_stage = f->any_stage };
	int rc;

	if (!s)
		return errmsg_nomem(err, NULL);
	if (all_views[f->kind]->takes & TAKES_DCP)
		options.dcp_style = s->tree.view.dcp_style;
	if (all_views[f->kind]->takes & TAKES_RANKS)
		options.type.ranks = new_ranks(r);
	rc = view_open_other(r->view, &options, out, err);
	if (rc)
		return rc;
	rc = view_prove(*out, false, err);
	if (rc)
		view_close(*out);
	return rc;
}

void report_close(struct report *r)
{
	view_close(r->view);
	notes_done(&r->notes);
	notes_done(&r->warnings);
	notes_done(&r->problems);
	bytebuf_done(&r->text);
	cJSON_Delete(r->json);
	free(r->path);
	free(r->dir);
}

void report_add_problems(struct report *r, bool all)
{
	const struct errmsg_sink found = { notes_add_new, &r->problems };

	if (r->c->ops->problems)
		r->c->ops->problems(r->c, all, &found);
}

void report_add_lost(struct report *r)
{
	const struct checkpoint *c = r->c;

	for (unsigned mp = 0; c && c->ranks && mp < c->tp * c->pp; mp++)
		if (c->ranks[mp].lost)
			notes_add_new(&r->problems, c->ranks[mp].refused);
}

void report_add_warnings(struct report *r)
{
	const struct errmsg_sink found = { notes_add_new, &r->warnings };
	const struct rank_table *t = r->c->ranks;

	view_warn(r->view, &found);
	if (t->ngroups && t->groups->mapping_ignored && !r->c->facts.round_robin)
		notes_add(
			&r->warnings,
			"param_slice_mappings contradicts param_shapes; using the order of param_shapes");
}

void report_line(struct report *r, const char *label, const char *fmt, ...)
{
	char *value;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&value, fmt, ap) < 0) {
		r->text.failed = true;
	} else {
		bytebuf_add_format(&r->text, "%-*s", REPORT_LABEL, label);
		bytebuf_add_shown(&r->text, value);
		bytebuf_add_str(&r->text, "\n");
		free(value);
	}
	va_end(ap);
}

void report_begin(struct report *r)
{
	static const struct {
		const char *word, *text;
	} choices[] = {
		[TAGS_ITSELF] = { "itself", "" },
		[TAGS_LATEST] = { "latest", " (named by latest)" },
		[TAGS_STEP] = { "step", " (highest step)" },
		[TAGS_MTIME] = { "mtime", " (last modified)" },
		[TAGS_BELOW] = { "below", " (the newest below)" },
		[TAGS_WEIGHTS] = { "weights", " (Hugging Face weights)" },
		[TAGS_NONE] = { "none", " (not a ZeRO checkpoint)" },
	};

	report_line(r, "checkpoint", "%s%s", r->dir, choices[r->choice].text);
	cJSON_AddStringToObject(r->json, "checkpoint", r->dir);
	cJSON_AddStringToObject(r->json, "chosen", choices[r->choice].word);
}

void report_finish(struct report *r, const char *whole)
{
	const struct {
		const char *key, *line;
		const struct notes *of;
	} lists[] = { { "notes", "note", &r->notes },
		      { "warnings", "warning", &r->warnings },
		      { "problems", "problem", &r->problems } };
	cJSON *json = r->json;

	cJSON_AddBoolToObject(json, "whole", r->problems.n == 0);
	bytebuf_add_str(&r->text, "\n");
	for (size_t i = 0; i < COUNT(lists); i++) {
		notes_add_json(lists[i].of, json, lists[i].key);
		add_lines(&r->text, lists[i].of, lists[i].line);
		r->text.failed |= lists[i].of->failed;
	}
	if (!r->problems.n)
		bytebuf_add_format(&r->text, "%s\n", whole);
}

int report_end(struct report *r, const char *whole, struct errmsg *err)
{
	cJSON *json = r->json;

	report_finish(r, whole);
	r->json = NULL;
	return report_emit_text(r->u, &r->text, json, err) ?: r->problems.n > 0;
}

int report_emit_text(const struct uckpt *u, struct bytebuf *text, cJSON *root, struct errmsg *err)
{
	int rc = 0;

	if (root && !text->failed) {
		text->len = 0;
		json_write(text, root, true);
		bytebuf_add_str(text, "\n");
	}
	cJSON_Delete(root);
	if (text->failed)
		rc = errmsg_nomem(err, NULL);
	else if (u->calls.report)
		u->calls.report(u->calls.arg, (const char *)text->data, text->len);
	bytebuf_done(text);
	return rc;
}
