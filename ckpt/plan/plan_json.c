/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan in JSON, for people and scripts: .ucfs/plan/<tag>.json in a mount.
 * One object per file, its runs as [offset, length, source, source offset]. The
 * source is an index into "shards", or a string for computed bytes.
 */
#include "ckpt/plan/plan.h"

#include <cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/plan/plan_impl.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile.h"

/* Print and delete `o`. */
static void add_json(struct bytebuf *out, cJSON *o)
{
	json_write(out, o, false);
	cJSON_Delete(o);
}

/* A source outside the plan's own shards is named by its path. */
static cJSON *source_json(const struct plan *p, const struct vfile *f,
			  uint32_t shard)
{
	return vfile_shards(f) == p->shards
		       ? cJSON_CreateNumber(shard)
		       : cJSON_CreateString(
				 shardcache_path(vfile_shards(f), shard));
}

static cJSON *run_json(const struct plan *p, const struct vfile *f,
		       const struct extent *e)
{
	cJSON *const run = cJSON_CreateArray();

	cJSON_AddItemToArray(run, cJSON_CreateNumber((double)e->start));
	cJSON_AddItemToArray(run,
			     cJSON_CreateNumber((double)(e[1].start - e->start)));
	if (!extent_has_shard(e)) {
		cJSON_AddItemToArray(run, cJSON_CreateString(
			e->kind == EXTENT_LITERAL ? "literal" :
			e->kind == EXTENT_ZERO	  ? "zero" :
						    "gather"));
		return run;
	}
	cJSON_AddItemToArray(run, source_json(p, f, e->shard));
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
		cJSON_AddItemToArray(runs, run_json(p, f, &m->v[i]));
	vfile_free(f);
	return 0;
}

static int dir_json(struct plan *p, uint64_t dir, cJSON *files,
		    struct errmsg *err)
{
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(p, dir, &pos, &e, err)) == 1) {
		if (plan_is_dir(p, e.node))
			continue;
		rc = file_json(p, &e, files, err);
		if (rc)
			return rc;
	}
	return rc;
}

/* Append the files of the root of a tree without parameters. */
static int files_json(struct plan *p, struct bytebuf *out, struct errmsg *err)
{
	cJSON *const files = cJSON_CreateObject();
	const int rc = dir_json(p, PLAN_ROOT, files, err);

	bytebuf_add_str(out, ",\"files\":");
	add_json(out, files);
	return rc;
}

void plan_add_shape(cJSON *o, const uint64_t *shape, unsigned ndim)
{
	cJSON *const list = cJSON_AddArrayToObject(o, "shape");

	for (unsigned i = 0; i < ndim; i++)
		cJSON_AddItemToArray(list,
				     cJSON_CreateNumber((double)shape[i]));
}

/* Append the parameters, one by one, so that a tree of 100,000 takes memory only for
 * its text. */
static int params_json(struct plan *p, struct bytebuf *out, struct errmsg *err)
{
	const char *before = "\n";
	struct plan_entry e;
	uint64_t pos = 0;
	size_t i = 0;
	int rc;

	bytebuf_add_str(out, ",\"params\":[");
	while ((rc = plan_next(p, PLAN_ZERO, &pos, &e, err)) == 1) {
		cJSON *o;

		if (!plan_is_dir(p, e.node))
			continue;
		o = cJSON_CreateObject();
		cJSON_AddStringToObject(o, "name", e.name);
		rc = p->view->describe(p, i++, o, err);
		if (!rc)
			rc = dir_json(p, e.node,
				      cJSON_AddObjectToObject(o, "files"), err);
		bytebuf_add_str(out, before);
		before = ",\n";
		add_json(out, o);
		if (rc)
			return rc;
	}
	bytebuf_add_str(out, "\n]");
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

	bytebuf_add_str(out, "{\"version\":1,\"tag\":");
	add_json(out, cJSON_CreateString(plan_tag(p)));
	bytebuf_add_str(out, ",\"shards\":");
	shards_json(p, out);
	rc = p->view->describe ? params_json(p, out, err)
			       : files_json(p, out, err);
	bytebuf_add_str(out, "}\n");
	if (!rc && out->failed)
		rc = errmsg_nomem(err, NULL);
	return rc;
}
