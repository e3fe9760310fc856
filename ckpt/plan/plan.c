/* SPDX-License-Identifier: Apache-2.0 */
/* What plans of all kinds do alike; the rest is their own. */
#include "ckpt/plan/plan.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "ckpt/dirs/tagdir.h"
#include "ckpt/plan/uc_file.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/plan/plan_impl.h"
#include "ckpt/vfile/vfile.h"

bool plan_parse_kind(const char *text, enum plan_kind *out)
{
	static const char *const names[PLAN_KINDS] = {
		[PLAN_UNIVERSAL] = "universal",
		[PLAN_HF] = "hf",
		[PLAN_FP32] = "fp32",
	};

	for (int kind = 0; kind < PLAN_KINDS; kind++)
		if (strcmp(text, names[kind]) == 0) {
			*out = (enum plan_kind)kind;
			return true;
		}
	return false;
}

unsigned plan_name_after(const char *const *names, unsigned n, unsigned after)
{
	const char *const last = after < n ? names[after] : "";
	unsigned best = n;

	for (unsigned i = 0; i < n; i++)
		if (names[i] && strcmp(names[i], last) > 0 &&
		    (best == n || strcmp(names[i], names[best]) < 0))
			best = i;
	return best;
}

/* As plan_open_indexed, and fails where that reads the files after all. */
static int open_indexed(const char *path, const struct plan_options *options,
			struct span index, struct plan **out,
			struct errmsg *refused, struct errmsg *err)
{
	struct plan_options universal = *options;
	struct plan *p;
	int rc;

	if (options->hugging_face && !ckdir_is_tag(path) && hfdir_is_one(path))
		return options->kind == PLAN_UNIVERSAL ?
			       plan_open_hfdir(path, options, out, err) :
			       errmsg_set(err, -ENOTSUP,
					  "%s: weights are all that it has",
					  path);
	universal.kind = PLAN_UNIVERSAL;
	rc = plan_open_universal(path, &universal, index, &p, refused, err);
	if (rc)
		return rc;
	if (options->kind != PLAN_UNIVERSAL)
		return plan_open_weights(p, true, options, out, err);
	*out = p;
	return 0;
}

int plan_open_indexed(const char *path, const struct plan_options *options,
		      struct span index, struct plan **out,
		      struct errmsg *refused, struct errmsg *err)
{
	const int rc = open_indexed(path, options, index, out, refused, err);

	return rc && *refused->text ? plan_open(path, options, out, err) : rc;
}

int plan_open(const char *path, const struct plan_options *options,
	      struct plan **out, struct errmsg *err)
{
	return open_indexed(path, options, (struct span){ 0 }, out, NULL, err);
}

int plan_open_beside(struct plan *universal, enum plan_kind kind,
		     struct plan **out, struct errmsg *err)
{
	struct plan_options options = universal->options;

	options.kind = kind;
	return plan_open_weights(universal, false, &options, out, err);
}

void plan_close(struct plan *p)
{
	if (p)
		p->ops->close(p);
}

int plan_check(struct plan *p, struct errmsg *err)
{
	return p->ops->check(p, err);
}

int plan_warning(struct plan *p, size_t *pos, struct errmsg *out)
{
	return p->ops->warning ? p->ops->warning(p, pos, out) : 0;
}

int plan_index(struct plan *p, struct bytebuf *out, struct errmsg *err)
{
	return p->ops->index ? p->ops->index(p, out, err) : 0;
}

const char *plan_tag(const struct plan *p)
{
	return p->tag;
}

struct resolve *plan_resolve(struct plan *p)
{
	return p->resolve;
}

struct shardcache *plan_shards(struct plan *p)
{
	return p->shards;
}

/* --- the tree ----------------------------------------------------------------- */

bool plan_is_dir(const struct plan *p, uint64_t node)
{
	return p->ops->is_dir(p, node);
}

uint64_t plan_parent(const struct plan *p, uint64_t dir)
{
	return dir == PLAN_ROOT ? PLAN_ROOT : p->ops->parent(p, dir);
}

int plan_set_entry(struct plan_entry *e, uint64_t node, const char *name,
		   const char *suffix)
{
	const size_t n = strlen(name), s = strlen(suffix);

	assert(n + s < sizeof(e->name));
	e->node = node;
	memcpy(e->name, name, n);
	memcpy(e->name + n, suffix, s + 1);
	return 1;
}

int plan_next(struct plan *p, uint64_t dir, uint64_t *pos,
	      struct plan_entry *out, struct errmsg *err)
{
	return p->ops->next(p, dir, pos, out, err);
}

int plan_lookup_by_walking(struct plan *p, uint64_t dir, const char *name,
			   uint64_t *node, struct errmsg *err)
{
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(p, dir, &pos, &e, err)) == 1)
		if (strcmp(e.name, name) == 0) {
			*node = e.node;
			return 0;
		}
	return rc ? rc : -ENOENT;
}

int plan_lookup(struct plan *p, uint64_t dir, const char *name,
		uint64_t *node, struct errmsg *err)
{
	return (p->ops->lookup ? p->ops->lookup : plan_lookup_by_walking)(
		p, dir, name, node, err);
}

int plan_following(struct plan *p, uint64_t node, enum plan_way way,
		   uint64_t *next, struct errmsg *err)
{
	return p->ops->following ? p->ops->following(p, node, way, next, err)
				 : -ENOENT;
}

int plan_stat(struct plan *p, uint64_t node, struct plan_stat *out,
	      struct errmsg *err)
{
	return p->ops->stat(p, node, out, err);
}

int plan_file_open(struct plan *p, uint64_t node, struct vfile **out,
		   struct errmsg *err)
{
	struct vfile *f;
	int rc = p->ops->file_open(p, node, &f, err);

	if (rc)
		return rc;
	rc = vfile_check(f, err);
	if (rc)
		vfile_free(f);
	else
		*out = f;
	return rc;
}

int plan_open_content(const struct plan *p, struct content *c, vfile_crc *crc,
		      struct vfile **out, struct errmsg *err)
{
	*out = vfile_new_pt(p->shards, &c->w, c->storages, &c->gathers,
			    p->options.crc_zero ? NULL : crc, err);
	content_done(c);
	return *out ? 0 : -ENOMEM;
}

static int add_totals(struct plan *p, uint64_t dir, uint64_t *files,
		      uint64_t *bytes, struct errmsg *err)
{
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(p, dir, &pos, &e, err)) == 1) {
		struct plan_stat st;

		rc = plan_stat(p, e.node, &st, err);
		if (!rc && st.is_dir)
			rc = add_totals(p, e.node, files, bytes, err);
		if (rc)
			return rc;
		*files += !st.is_dir;
		*bytes += st.size;
	}
	return rc;
}

int plan_totals(struct plan *p, uint64_t *files, uint64_t *bytes,
		struct errmsg *err)
{
	*files = *bytes = 0;
	return add_totals(p, PLAN_ROOT, files, bytes, err);
}
