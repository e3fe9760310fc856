/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are there, and then those that are made of a distributed checkpoint. */
#include "ckpt/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/cache/cache.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/io/roots.h"
#include "ckpt/pack/pack.h"
#include "ckpt/remote/remote.h"
#include "ckpt/remote/site.h"

struct uckpt *context_new(void)
{
	struct uckpt *const u = calloc(1, sizeof(*u));

	if (!u)
		return NULL;
	pthread_mutex_init(&u->lock, NULL);
	u->remote.deadline_s = REMOTE_DEADLINE_S;
	u->cache = cache_pool_new(u);
	if (u->cache)
		return u;
	context_free(u);
	return NULL;
}

void context_free(struct uckpt *u)
{
	if (!u)
		return;
	pack_close_kept(u);
	remote_lists_done(u);
	sites_done(u);
	remote_options_done(u);
	free(u->model);
	roots_done(u);
	beneath_done(u);
	cache_pool_free(u->cache);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

int files_open_pt(struct uckpt *u, const char *path, const struct fileid *known,
		  struct ptfile *out, struct errmsg *err)
{
	struct source src;

	return io_open(u, path, known, &src, err) ?: ptfile_open_source(out, &src, err);
}

bool files_has(struct uckpt *u, const char *path,
	       bool (*wanted)(const char *name))
{
	struct dirlist l = { .wanted = wanted };
	const int rc = io_list(u, path, 0, &l, NULL);
	const bool found = l.found;

	dirlist_done(&l);
	return !rc && found;
}
