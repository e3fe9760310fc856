/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the tags of a run: each is opened, which reads its first model states and finds missing
 * ranks, but no other shard.  The newest, which is open already, is described after the table.
 */
#include <cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ckpt/base/attrs.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/text.h"
#include "ckpt/commands/info_impl.h"
#include "ckpt/commands/report.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/table/tags.h"
#include "ckpt/foreign/dcp.h"
#include "ckpt/foreign/loaders.h"
#include "ckpt/table/checkpoint.h"

/* The columns of a tag that can be opened. */
struct summary {
	char kind[16], ranks[40];
	const char *dtype;
	int64_t step;
	uint64_t bytes;
};

static void summarize(struct summary *s, enum dir_kind kind, const struct checkpoint *c)
{
	const struct run_facts *f = &c->facts;

	if (kind == DIR_ZERO)
		snprintf(s->kind, sizeof(s->kind), "ZeRO-%s",
			 f->zero3        ? "3"
			 : f->stage == 2 ? "2"
			 : f->stage == 1 ? "1"
					 : "1/2");
	else
		snprintf(s->kind, sizeof(s->kind), "%s",
			 kind == DIR_DCP ? dcp_of((struct checkpoint *)c)->nranks ? "FSDP" : "DCP"
					 : "stage 0");
	snprintf(s->ranks, sizeof(s->ranks), "%u x %u x %u", c->dp, c->tp, c->pp);
	s->dtype = f->module_dtype == DTYPE_OTHER ? "-" : dtype_name(f->module_dtype);
	s->step = f->global_steps;
	for (size_t i = 0; i < c->nfiles; i++)
		s->bytes += c->files[i].file.size;
}

static void when_text(int64_t mtime_ns, char buf[32])
{
	const time_t t = (time_t)(mtime_ns / 1000000000);
	struct tm tm;

	if (!localtime_r(&t, &tm) || !strftime(buf, 32, "%Y-%m-%d %H:%M", &tm))
		strcpy(buf, "-");
}

static void add_json(cJSON *list, const struct tag *t, const struct summary *s, const char *why,
		     bool latest)
{
	cJSON *o = json_add_object(list);

	cJSON_AddStringToObject(o, "name", t->name);
	json_add_int(o, "mtime_ns", t->mtime_ns);
	cJSON_AddBoolToObject(o, "latest", latest);
	json_add_text(o, "problem", *why ? why : NULL);
	if (*why)
		return;
	json_add_int(o, "step", s->step);
	cJSON_AddStringToObject(o, "kind", s->kind);
	cJSON_AddStringToObject(o, "ranks", s->ranks);
	cJSON_AddStringToObject(o, "module_dtype", s->dtype);
	json_add_int(o, "bytes", (int64_t)s->bytes);
}

static void add_line(struct report *r, const struct tag *t, const struct summary *s,
		     const char *why, bool latest, int width)
{
	char when[32], size[SIZE_TEXT_LEN], step[24] = "-";
	const int n = bytebuf_add_shown(&r->text, t->name);

	when_text(t->mtime_ns, when);
	bytebuf_add_format(&r->text, "%*s  %-16s  ", n < width ? width - n : 0, "", when);
	if (*why) {
		bytebuf_add_shown(&r->text, why);
	} else {
		if (s->step >= 0)
			snprintf(step, sizeof(step), "%" PRId64, s->step);
		bytebuf_add_format(&r->text, "%7s  %-8s  %-12s  %-8s  %10s%s", step, s->kind,
				   s->ranks, s->dtype, size_text(s->bytes, size),
				   latest ? "  latest" : "");
	}
	bytebuf_add_str(&r->text, "\n");
}

static void add_tag(struct report *r, cJSON *list, const struct tag *t, bool latest, int width)
{
	struct errmsg why = { "" };
	struct summary s = { .dtype = "-" };
	struct dirlist names = { 0 };
	char *path = tags_join(r->path, t->name);
	const bool is_open = path && r->c && strcmp(path, r->dir) == 0;
	struct checkpoint *c = NULL;
	enum dir_kind kind;

	if (!path) {
		r->text.failed = true;
		return;
	}
	kind = detect(r->u, path, is_open ? NULL : &names);
	if (kind < DIR_STATES) {
		detect_explain(r->u, path, &why);
	} else if (is_open || !loaders_open(r->u, path, kind, &names, NULL, &c, &why)) {
		summarize(&s, kind, is_open ? r->c : c);
		*why.text = '\0'; /* it concerns missing optional files */
	}
	checkpoint_close(c);
	dirlist_done(&names);
	add_json(list, t, &s, why.text, latest);
	add_line(r, t, &s, why.text, latest, width);
	free(path);
}

void info_tags(struct report *r)
{
	cJSON *list = cJSON_AddArrayToObject(r->json, "tags");
	int width = (int)strlen("tag");
	struct tag_list tags;

	if (r->choice == TAGS_ITSELF || r->choice > TAGS_BELOW ||
	    (r->choice == TAGS_BELOW ? tags_list(r->u, r->path, true, &tags, NULL)
				     : tags_list_all(r->u, r->path, &tags, NULL)))
		return;
	for (size_t i = 0; i < tags.n; i++)
		if ((int)strlen(tags.v[i].name) > width)
			width = (int)strlen(tags.v[i].name);
	bytebuf_add_format(&r->text, "%-*s  %-16s  %7s  %-8s  %-12s  %-8s  %10s\n", width, "tag",
			   "saved", "step", "kind", "dp x tp x pp", "dtype", "size");
	for (size_t i = tags.n; i-- > 0;)
		add_tag(r, list, &tags.v[i], tags.choice == TAGS_LATEST && !i, width);
	bytebuf_add_str(&r->text, "\n");
	tags_done(&tags);
}
