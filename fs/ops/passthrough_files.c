/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/ops/passthrough_files.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/uckpt.h"
#include "fs/ops/passthrough.h"

/* Find or add the file; `fd` is negative if it must be streamed.  NULL when memory runs out.
 * The caller holds the lock. */
static struct passthrough_file *add_handle(struct passthrough_files *p, uint64_t ino,
					   int fd)
{
	struct passthrough_file *file;

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

int passthrough_file_open(struct passthrough_files *p, uint64_t ino, struct uckpt_file *f,
			  struct passthrough_file **out, struct uckpt_error *err)
{
	int fd, rc;

	*out = NULL;
	if (!atomic_load(&p->passthrough->on))
		return 0;
	rc = uckpt_file_descriptor(f, &fd, err);
	if (rc)
		return rc == -ENOTSUP ? 0 : rc;
	pthread_mutex_lock(p->lock);
	*out = add_handle(p, ino, fd);
	pthread_mutex_unlock(p->lock);
	if (fd >= 0)
		close(fd);
	return *out ? 0 : -ENOMEM;
}

void passthrough_file_close(struct passthrough_files *p, struct passthrough_file *file)
{
	bool last;

	if (!file)
		return;
	pthread_mutex_lock(p->lock);
	assert(file->handles > 0);
	last = --file->handles == 0;
	if (last)
		LIST_REMOVE(file, link);
	pthread_mutex_unlock(p->lock);
	if (!last)
		return;
	if (file->id)
		passthrough_end(p->passthrough, file->id);
	free(file);
}
