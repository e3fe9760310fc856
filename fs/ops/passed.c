/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ops/passed.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "ckpt/base/context.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile.h"
#include "fs/ops/passthrough.h"

/* Find or add the file; `fd` is negative if it must be streamed.  NULL when memory
 * runs out.  Called with the lock held. */
static struct passed *add_handle(struct passed_files *p, uint64_t ino, int fd)
{
	struct passed *file;

	LIST_FOREACH(file, &p->list, link)
		if (file->ino == ino)
			break;
	if (!file && (file = calloc(1, sizeof(*file)))) {
		file->ino = ino;
		file->id = fd < 0 ? 0 : passthrough_begin(p->passthrough, fd);
		LIST_INSERT_HEAD(&p->list, file, link);
	}
	if (file)
		file->handles++;
	return file;
}

int passed_open(struct passed_files *p, uint64_t ino, const struct vfile *v,
		struct passed **out, struct errmsg *err)
{
	const int64_t shard = vfile_verbatim_shard(v);
	struct shardcache *const c = vfile_shards(v);
	struct shard_map m;
	int rc;

	*out = NULL;
	if (shard < 0 || !atomic_load(&p->passthrough->on))
		return 0;
	rc = shardcache_get(c, (uint32_t)shard, &m, err);
	if (rc)
		return rc;
	/* The kernel would wait for each window of a far shard. */
	if (!shardcache_can_map(c, 0))
		m.fd = -1;
	pthread_mutex_lock(&p->u->lock);
	*out = add_handle(p, ino, m.fd);
	pthread_mutex_unlock(&p->u->lock);
	shardcache_put(c, (uint32_t)shard);
	return *out ? 0 : -ENOMEM;
}

void passed_close(struct passed_files *p, struct passed *file)
{
	bool last;

	if (!file)
		return;
	pthread_mutex_lock(&p->u->lock);
	assert(file->handles > 0);
	last = --file->handles == 0;
	if (last)
		LIST_REMOVE(file, link);
	pthread_mutex_unlock(&p->u->lock);
	if (!last)
		return;
	if (file->id)
		passthrough_end(p->passthrough, file->id);
	free(file);
}
