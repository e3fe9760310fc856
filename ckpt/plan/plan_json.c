/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan in JSON, for people and scripts: .ucfs/plan/<tag>.json in a mount.
 * One object per file, its runs as [offset, length, source, source offset]. The
 * source is an index into "shards", or a string for computed bytes.
 */
#include <cJSON.h>
#include <inttypes.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/plan/plan_impl.h"
#include "ckpt/vfile/shardcache.h"

static void add_string(struct bytebuf *out, const char *s)
{
	cJSON *const value = cJSON_CreateString(s);

	json_write(out, value, false);
	cJSON_Delete(value);
}

/* A source outside the plan's own shards is named by its path. */
static void add_run(const struct plan *p, const struct vfile *f,
		    const struct extent *e, struct bytebuf *out)
{
	bytebuf_add_format(out, "[%" PRIu64 ",%" PRIu64, e->start,
			   e[1].start - e->start);
	if (e->kind != EXTENT_SHARD) {
		bytebuf_add_str(out, e->kind == EXTENT_LITERAL ? ",\"literal\"]"
				     : e->kind == EXTENT_ZERO  ? ",\"zero\"]"
							      : ",\"gather\"]");
		return;
	}
	if (vfile_shards(f) == p->shards) {
		bytebuf_add_format(out, ",%" PRIu32, e->shard);
	} else {
		bytebuf_add_str(out, ",");
		add_string(out, shardcache_path(vfile_shards(f), e->shard));
	}
	bytebuf_add_format(out, ",%" PRIu64, e->from);
	if (extent_is_cast(e)) {
		bytebuf_add_str(out, ",");
		add_string(out, dtype_name(e->dtype));
	}
	bytebuf_add_str(out, "]");
}

/* Append the files of a directory. */
static int add_files(struct plan *p, uint64_t dir, struct bytebuf *out,
		     struct errmsg *err)
{
	const char *before = "";
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	bytebuf_add_str(out, ",\"files\":{");
	while ((rc = plan_next(p, dir, &pos, &e, err)) == 1) {
		const struct extent_map *m;
		struct vfile *f;

		if (plan_is_dir(p, e.node))
			continue;
		rc = plan_file_open(p, e.node, &f, err);
		if (rc)
			return rc;
		m = vfile_extents(f);
		bytebuf_add_str(out, before);
		before = ",";
		add_string(out, e.name);
		bytebuf_add_format(out, ":{\"bytes\":%" PRIu64 ",\"runs\":[",
				   vfile_size(f));
		for (size_t i = 0; i < m->n; i++) {
			bytebuf_add_str(out, i ? "," : "");
			add_run(p, f, &m->v[i], out);
		}
		bytebuf_add_str(out, "]}");
		vfile_free(f);
	}
	bytebuf_add_str(out, "}");
	return rc;
}

void plan_add_tensor(struct bytebuf *out, const uint64_t *shape, unsigned ndim,
		     const char *rule, enum dtype dtype)
{
	bytebuf_add_str(out, ",\"shape\":[");
	for (unsigned i = 0; i < ndim; i++)
		bytebuf_add_format(out, "%s%" PRIu64, i ? "," : "", shape[i]);
	bytebuf_add_str(out, "]");
	if (rule) {
		bytebuf_add_str(out, ",\"rule\":");
		add_string(out, rule);
	}
	bytebuf_add_str(out, ",\"dtype\":");
	add_string(out, dtype_name(dtype));
}

static int add_params(struct plan *p, struct bytebuf *out, struct errmsg *err)
{
	const char *before = "\n{\"name\":";
	struct plan_entry e;
	uint64_t pos = 0;
	size_t i = 0;
	int rc;

	bytebuf_add_str(out, ",\"params\":[");
	while ((rc = plan_next(p, PLAN_ZERO, &pos, &e, err)) == 1) {
		if (!plan_is_dir(p, e.node))
			continue;
		bytebuf_add_str(out, before);
		before = ",\n{\"name\":";
		add_string(out, e.name);
		rc = p->view->describe(p, i++, out, err)
			     ?: add_files(p, e.node, out, err);
		if (rc)
			return rc;
		bytebuf_add_str(out, "}");
	}
	bytebuf_add_str(out, "\n]");
	return rc;
}

int plan_json(struct plan *p, struct bytebuf *out, struct errmsg *err)
{
	const struct shardcache *const c = p->shards;
	int rc;

	bytebuf_add_str(out, "{\"version\":1,\"tag\":");
	add_string(out, p->tag);
	bytebuf_add_str(out, ",\"shards\":[");
	for (size_t i = 0; i < shardcache_count(c); i++) {
		bytebuf_add_str(out, i ? "," : "");
		add_string(out, shardcache_path(c, (uint32_t)i));
	}
	bytebuf_add_str(out, "]");
	rc = p->view->describe ? add_params(p, out, err)
			       : add_files(p, PLAN_ROOT, out, err);
	bytebuf_add_str(out, "}\n");
	if (!rc && out->failed)
		rc = errmsg_nomem(err, NULL);
	return rc;
}
