/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan as people and scripts read it: .ucfs/plan/<tag>.json in a mount.
 * One object per file, its runs as [offset, length, source, source offset];
 * source is an index into "shards", or a string for bytes that are made.
 * Written object by object, so that a tree of 100,000 parameters needs memory
 * for its text only.
 */
#include "ckpt/plan.h"

#include <cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/content.h"
#include "ckpt/errmsg.h"
#include "ckpt/resolve.h"
#include "ckpt/shardcache.h"
#include "ckpt/vfile.h"

static void add_text(struct bytebuf *out, const char *s)
{
	bytebuf_add(out, s, strlen(s));
}

/* Print and delete `o`. */
static void add_json(struct bytebuf *out, cJSON *o)
{
	char *const s = cJSON_PrintUnformatted(o);

	if (s)
		add_text(out, s);
	else
		out->failed = true;
	cJSON_free(s);
	cJSON_Delete(o);
}

static cJSON *run_json(const struct extent *e)
{
	cJSON *const run = cJSON_CreateArray();

	cJSON_AddItemToArray(run, cJSON_CreateNumber((double)e->start));
	cJSON_AddItemToArray(run,
			     cJSON_CreateNumber((double)(e[1].start - e->start)));
	if (e->kind == EXTENT_LITERAL || e->kind == EXTENT_GATHER) {
		cJSON_AddItemToArray(run, cJSON_CreateString(
						  e->kind == EXTENT_LITERAL ?
							  "literal" :
							  "gather"));
		return run;
	}
	cJSON_AddItemToArray(run, cJSON_CreateNumber(e->shard));
	cJSON_AddItemToArray(run, cJSON_CreateNumber((double)e->from));
	if (e->kind == EXTENT_CAST)
		cJSON_AddItemToArray(run, cJSON_CreateString(
						  dtype_name(e->dtype)));
	return run;
}

static int file_json(struct plan *p, const struct plan_entry *e, cJSON *files,
		     struct errmsg *err)
{
	const struct extent_map *m;
	struct vfile *f;
	cJSON *o, *runs;
	const int rc = plan_file_open(p, e->node, &f, err);

	if (rc)
		return rc;
	m = vfile_extents(f);
	o = cJSON_AddObjectToObject(files, e->name);
	cJSON_AddNumberToObject(o, "bytes", (double)vfile_size(f));
	runs = cJSON_AddArrayToObject(o, "runs");
	for (size_t i = 0; i < m->n; i++)
		cJSON_AddItemToArray(runs, run_json(&m->v[i]));
	vfile_free(f);
	return 0;
}

static int files_json(struct plan *p, uint64_t dir, cJSON *files,
		      struct errmsg *err)
{
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(p, dir, &pos, &e, err)) == 1) {
		struct plan_stat st;

		rc = plan_stat(p, e.node, &st, err);
		if (!rc && !st.is_dir)
			rc = file_json(p, &e, files, err);
		if (rc)
			return rc;
	}
	return rc;
}

static int param_json(struct plan *p, const struct plan_entry *e,
		      struct bytebuf *out, struct errmsg *err)
{
	const struct param *const param =
		model_find(&plan_resolve(p)->model, e->name);
	cJSON *const o = cJSON_CreateObject();
	cJSON *shape;
	int rc;

	cJSON_AddStringToObject(o, "name", e->name);
	shape = cJSON_AddArrayToObject(o, "shape");
	for (unsigned i = 0; i < param->ndim; i++)
		cJSON_AddItemToArray(
			shape, cJSON_CreateNumber((double)param->shape[i]));
	if (param->module) {
		cJSON_AddStringToObject(o, "rule", "module");
		cJSON_AddStringToObject(o, "dtype",
					dtype_name(param->module->dtype));
	} else {
		const struct shard_group *group;

		rc = resolve_group(plan_resolve(p), param, &group, err);
		if (rc) {
			cJSON_Delete(o);
			return rc;
		}
		cJSON_AddStringToObject(o, "rule",
					merge_rule_name(param->merge.rule));
		cJSON_AddStringToObject(
			o, "dtype",
			dtype_name(group->fp32.dtype));
		cJSON_AddNumberToObject(o, "group", param->first->group);
	}
	rc = files_json(p, e->node, cJSON_AddObjectToObject(o, "files"), err);
	add_json(out, o);
	return rc;
}

static int params_json(struct plan *p, struct bytebuf *out,
		       struct errmsg *err)
{
	struct plan_entry e;
	uint64_t pos = 0;
	bool first = true;
	int rc;

	while ((rc = plan_next(p, PLAN_ZERO, &pos, &e, err)) == 1) {
		struct plan_stat st;

		rc = plan_stat(p, e.node, &st, err);
		if (rc)
			return rc;
		if (!st.is_dir)
			continue;
		add_text(out, first ? "\n" : ",\n");
		first = false;
		rc = param_json(p, &e, out, err);
		if (rc)
			return rc;
	}
	return rc;
}

static void shards_json(struct plan *p, struct bytebuf *out)
{
	const struct shardcache *const c = plan_shards(p);
	cJSON *const list = cJSON_CreateArray();

	for (size_t i = 0; i < shardcache_count(c); i++)
		cJSON_AddItemToArray(list, cJSON_CreateString(shardcache_path(
						   c, (uint32_t)i)));
	add_json(out, list);
}

int plan_json(struct plan *p, struct bytebuf *out, struct errmsg *err)
{
	int rc;

	add_text(out, "{\"version\":1,\"tag\":");
	add_json(out, cJSON_CreateString(plan_tag(p)));
	add_text(out, ",\"shards\":");
	shards_json(p, out);
	add_text(out, ",\"params\":[");
	rc = params_json(p, out, err);
	add_text(out, "\n]}\n");
	if (!rc && out->failed)
		rc = errmsg_set(err, -ENOMEM, "out of memory");
	return rc;
}
