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
#include "ckpt/cmd/report.h"

#include <assert.h>
#include <cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/cmd/cmd.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/zero/complete.h"

#define LABEL_LEN 16

/* At most this many tags are named. */
#define NAMED_MAX 16

void findings_add(struct findings *l, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = array_reserve(&l->v, &l->cap, l->n + 1, sizeof(*l->v))
		    ? vasprintf(&l->v[l->n], fmt, ap)
		    : -1;
	va_end(ap);
	if (n < 0)
		cmd_nomem();
	l->n++;
}

void findings_add_new(void *findings, const char *text)
{
	struct findings *const l = findings;

	for (size_t i = 0; i < l->n; i++)
		if (strcmp(l->v[i], text) == 0)
			return;
	if (*text)
		findings_add(l, "%s", text);
}

void findings_take(struct findings *l, struct findings *from)
{
	assert(from != l);
	for (size_t i = 0; i < from->n; i++)
		findings_add_new(l, from->v[i]);
	findings_done(from);
}

void findings_add_json(const struct findings *l, cJSON *object, const char *key)
{
	cJSON *const list = cJSON_AddArrayToObject(object, key);

	for (size_t i = 0; i < l->n; i++)
		cJSON_AddItemToArray(list, cJSON_CreateString(l->v[i]));
}

static void findings_print(const struct findings *l, const char *kind)
{
	for (size_t i = 0; i < l->n; i++) {
		printf("%s: ", kind);
		cmd_put(l->v[i]);
		putchar('\n');
	}
}

void findings_done(struct findings *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i]);
	free(l->v);
	*l = (struct findings){ 0 };
}

/* Name the tags in directories of the run, if there are `min`. */
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
		findings_add(&r->warnings, "%s: tags in directories below: %s%s",
			     run, names.data, tags.n > NAMED_MAX ? ", ..." : "");
	bytebuf_done(&names);
	tags_done(&tags);
}

/* Warn if `run` may mean another tag than the one that was chosen.  `latest` may name a
 * tag that does not exist or that is not a ZeRO checkpoint. */
static void warn_of_choice(struct report *r, const char *run)
{
	struct tag_list tags;

	if (r->choice == TAGS_BELOW || r->choice == TAGS_WEIGHTS)
		name_tags_below(r, run, r->choice == TAGS_BELOW ? 2 : 1);
	if ((r->choice != TAGS_STEP && r->choice != TAGS_MTIME) ||
	    tags_list(r->u, run, false, &tags, NULL))
		return;
	if (tags.latest)
		findings_add(&r->warnings,
			     "%s/latest names %s, which is not a ZeRO checkpoint",
			     run, tags.latest);
	tags_done(&tags);
}

int report_open(struct report *r, char *const *args, size_t n)
{
	static const struct plan_options options = { .crc_zero = true };
	char *const path = cmd_source(r->u, args, n);
	const struct errmsg_sink found = { findings_add_new, &r->problems };
	struct errmsg err = { "" };
	int rc;

	if (!path)
		return CMD_FAILED;
	rc = tags_choose(r->u, path, &r->dir, &r->choice, &err);
	if (rc)
		cmd_say("%s", err.text);
	else
		warn_of_choice(r, path);
	free(path);
	if (rc)
		return CMD_FAILED;
	rc = plan_open(r->u, r->dir, &options, &r->plan, &err);
	if (rc)
		findings_add_new(&r->problems, err.text);
	if (rc == -EBADMSG)
		tagdir_find_missing(r->u, r->dir, &found);
	return CMD_OK;
}

void report_close(struct report *r)
{
	plan_close(r->plan);
	findings_done(&r->notes);
	findings_done(&r->warnings);
	findings_done(&r->problems);
	free(r->dir);
}

void report_add_problems(struct report *r, bool all)
{
	const struct errmsg_sink found = { findings_add_new, &r->problems };

	zckpt_find_problems(plan_zckpt(r->plan), all, &found);
}

void report_add_warnings(struct report *r)
{
	const struct zero_checkpoint *const zero = plan_zckpt(r->plan);
	const struct errmsg_sink found = { findings_add_new, &r->warnings };

	plan_warn(r->plan, &found);
	if (zckpt_shard(zero, 0, 0) && zckpt_shard(zero, 0, 0)->mapping_ignored &&
	    !zero->model.ranks[0].round_robin)
		findings_add(&r->warnings,
			     "param_slice_mappings is wrong: parameters are"
			     " read in the order of param_shapes");
}

void report_label(const char *label)
{
	printf("%-*s", LABEL_LEN, label);
}

void report_print_begin(const struct report *r)
{
	static const char *const choices[] = {
		[TAGS_LATEST] = "named by latest",
		[TAGS_STEP] = "highest step",
		[TAGS_MTIME] = "last modified",
		[TAGS_BELOW] = "the newest below",
		[TAGS_WEIGHTS] = "Hugging Face weights",
		[TAGS_NONE] = "not a ZeRO checkpoint",
	};

	report_label("checkpoint");
	cmd_put(r->dir);
	if (choices[r->choice])
		printf(" (%s)", choices[r->choice]);
	putchar('\n');
}

void report_print_end(const struct report *r, const char *whole)
{
	putchar('\n');
	findings_print(&r->notes, "note");
	findings_print(&r->warnings, "warning");
	findings_print(&r->problems, "problem");
	if (!r->problems.n)
		puts(whole);
}
