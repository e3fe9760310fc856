/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/table/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/model/geometry.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/shards.h"

struct shards *checkpoint_shards(struct uckpt *u, const struct tag_file *files, size_t n)
{
	struct shards *const c = shards_new(u);

	for (size_t i = 0; c && i < n; i++)
		if (shards_add(c, files[i].path, &files[i].file) < 0) {
			shards_free(c);
			return NULL;
		}
	return c;
}

int checkpoint_list(struct uckpt *u, const struct checkpoint_ops *ops, const char *path,
		    struct checkpoint **out, struct errmsg *err)
{
	struct checkpoint *const c = calloc(1, ops->size);
	int rc;

	assert(ops->size >= sizeof(*c));
	if (!c)
		return errmsg_nomem(err, path);
	c->u = u;
	c->ops = ops;
	rc = ops->list(c, path, err);
	if (rc)
		checkpoint_close(c);
	else
		*out = c;
	return rc;
}

int checkpoint_open(struct uckpt *u, const struct checkpoint_ops *ops, const char *path,
		    const struct user_rules *rules, struct checkpoint **out,
		    struct errmsg *err)
{
	struct checkpoint *c;
	int rc = checkpoint_list(u, ops, path, &c, err);

	if (rc)
		return rc;
	rc = ops->load(c, rules, err);
	if (!rc) {
		c->shards = checkpoint_shards(u, c->files, c->nfiles);
		rc = c->shards ? 0 : errmsg_nomem(err, path);
	}
	if (rc)
		checkpoint_close(c);
	else
		*out = c;
	return rc;
}

void checkpoint_close(struct checkpoint *c)
{
	if (!c)
		return;
	shards_free(c->shards);
	c->ops->close(c);
	free(c);
}

int checkpoint_order(struct checkpoint *c, struct errmsg *err)
{
	int rc = c->order ? 0 : c->ops->order(c, err);

	for (size_t i = 0; !rc && i < c->norder; i++)
		if (c->order[i]->refused)
			rc = errmsg_set(err, -ENOTSUP, "%s", c->order[i]->refused);
	return rc;
}

enum dtype checkpoint_dtype(const struct param *p, enum dtype to)
{
	switch (p->dtype) {
	case DTYPE_F64:
	case DTYPE_F32:
	case DTYPE_F16:
	case DTYPE_BF16:
	case DTYPE_F8_E4M3:
	case DTYPE_F8_E5M2:
	case DTYPE_F8_E4M3FNUZ:
	case DTYPE_F8_E5M2FNUZ:
	case DTYPE_F8_E8M0:
		return to;
	default:
		return p->dtype;
	}
}

bool checkpoint_stored(const struct stored *s, enum dtype to, struct extent_map *out,
		       struct gathers *gathers)
{
	struct tensor t;

	stored_describe(s, &t);
	return tensor_is_contiguous(&t)
		       ? extent_add_cast(out, s->numel, s->file,
					 s->storage + s->storage_offset * dtype_size(s->dtype),
					 s->dtype, to)
		       : gathers_add_tensor(gathers, &t, s->file, s->storage, to, out);
}

int checkpoint_weights(struct checkpoint *c, const struct param *p, enum dtype to,
		       struct extent_map *out, struct gathers *gathers, struct errmsg *err)
{
	const struct param *const x = p->same ?: p;
	struct extent_map made = { 0 };
	int rc;

	if (!x->numel)
		return 0;
	if (!x->states && x->module)
		return checkpoint_stored(x->module, to, out, gathers)
			       ? 0
			       : errmsg_nomem(err, c->path);
	rc = c->ops->extents(c, x, x->states ? x->states->v : NULL, &made, gathers, err);
	/* A parameter's rows of padding are at the end. */
	if (!rc && !extent_add_range(out, &made, 0, x->numel * dtype_size(x->dtype), x->dtype, to))
		rc = errmsg_nomem(err, c->path);
	extent_done(&made);
	return rc;
}
