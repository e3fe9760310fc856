/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_REPORT_H
#define UCKPT_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/bytes.h"
#include "ckpt/table/tags.h"
#include "ckpt/views/all_views.h"

struct cJSON;
struct checkpoint;
struct errmsg;
struct view;

/* Lines of a report.  A zero-initialised list is empty.  When memory runs out `failed` is
 * set; report_emit checks it.  Not thread-safe. */
struct notes {
	char **v;
	size_t n, cap;
	bool failed;
};

/* Add a line, formatted like printf. */
void notes_add(struct notes *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

bool notes_have(const struct notes *l, const char *text);

/* Add `text` unless it is empty or already in `notes`, a struct notes: for an
 * errmsg_sink. */
void notes_add_new(void *notes, const char *text);

/* Move the lines of `from` to the end of `l`, without duplicates.  Leaves
 * `from` empty. */
void notes_take(struct notes *l, struct notes *from);

/* Add to `object` an array of the lines. */
void notes_add_json(const struct notes *l, struct cJSON *object, const char *key);

void notes_done(struct notes *l);

/* The report of uckpt_info and uckpt_check on the directory of a tag or of Hugging Face weights. */
struct report {
	struct uckpt *u;
	char *path; /* the given path of a tag or a run; of several paths, their union */
	char *dir;  /* path of the tag */
	enum tags_choice choice;
	struct view *view;    /* of the universal tree; may be NULL */
	struct checkpoint *c; /* of `view`, or NULL */
	struct notes notes;
	struct notes warnings; /* problems that do not prevent serving */
	struct notes problems;
	struct bytebuf text;
	struct cJSON *json; /* the report as JSON instead of text; or NULL */
};

/*
 * Choose the directory that `n` paths mean and make its universal view.  If that fails, add the
 * problem, and a line for each missing or unreadable file.  Returns an error if there is nothing to
 * report on.  With flag UCKPT_JSON the report is JSON. Call report_close in any case.
 */
int report_open(struct report *r, const char *const *paths, size_t n, unsigned flags,
		struct errmsg *err);
void report_close(struct report *r);

/* The forms of trees that uckpt_convert writes, always in the same order. */
struct report_form {
	char options[32]; /* of `ucckpt convert` */
	enum view_kind kind;
	bool any_stage;
};
#define REPORT_FORMS (VIEW_KINDS + 1)
struct report_form report_form(size_t i);

/* Make a form from the report's view, and prove it as uckpt_convert does.  Errors as
 * view_open_derived and view_prove; the caller closes the view. */
int report_open_form(const struct report *r, const struct report_form *f, struct view **out,
		     struct errmsg *err);

/* Add the problems of all files (checkpoint_ops.problems), and the
 * view's warnings. */
void report_add_problems(struct report *r, bool all);

/* Add the problem that the optimizer is missing, so that no run can resume; it comes after other
 * problems. */
void report_add_lost(struct report *r);
void report_add_warnings(struct report *r);

#define REPORT_LABEL 16 /* width of a label, in columns */

/* Add a line to the text: a label and its value, formatted like printf and shown as utf8_show
 * does. */
void report_line(struct report *r, const char *label, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Name the directory in the text and the JSON. */
void report_begin(struct report *r);

/* End the text and the JSON with notes, warnings and problems; the text gets `whole` if there are
 * none. */
void report_finish(struct report *r, const char *whole);

/* As report_finish, and pass the report to the caller of the library.  Returns 1 if there are
 * problems, or -ENOMEM. */
int report_end(struct report *r, const char *whole, struct errmsg *err);

/* Pass `text`, or `root` if that is not NULL, to the caller of the library, and free both.
 * -ENOMEM, also if the text has failed. */
int report_emit_text(const struct uckpt *u, struct bytebuf *text, struct cJSON *root,
		     struct errmsg *err);

#endif
