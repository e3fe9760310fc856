/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/table/checkpoint.h"

#include <assert.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/vfile/shardcache.h"

struct shardcache *checkpoint_shards(struct uckpt *u, const struct tag_file *files,
				     size_t n)
{
	struct shardcache *const c = shardcache_new(u);

	for (size_t i = 0; c && i < n; i++)
		if (shardcache_add(c, files[i].path, &files[i].file) < 0) {
			shardcache_free(c);
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
	shardcache_free(c->shards);
	c->ops->close(c);
	free(c);
}
