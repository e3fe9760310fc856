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
#include "ckpt/dcp/dcp.h"
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
	dcp_close_kept(u);
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

/* A file that is made. */
struct made {
	struct dcp *d;
	enum dcp_zerofile_kind kind;
};

/* Find the file that a path, at which nothing is, leads to: 0, or `missing` if it leads to
 * none of these.  The caller closes `f->d`. */
static int made_find(struct uckpt *u, struct made *f, const char *path, int missing,
		     struct errmsg *err)
{
	const char *const slash = strrchr(path, '/');
	struct errmsg why = { "" };
	char *dir;
	int rc;

	if (!slash || !dcp_find(slash + 1, &f->kind))
		return missing;
	dir = strndup(path, slash == path ? 1 : (size_t)(slash - path));
	if (!dir)
		return errmsg_nomem(err, path);
	rc = dcp_open(u, dir, &f->d, &why);
	free(dir);
	if (rc == -ENOENT)
		return missing;
	/* A file is there, or why not: callers look for a text, too. */
	if (err)
		*err = why;
	return rc;
}

int files_stat(struct uckpt *u, const char *path, struct attrs *out, char **where,
	       struct errmsg *err)
{
	struct made f;
	int rc = io_stat(u, path, 0, out, where, err);

	if (!beneath_is_missing(rc))
		return rc;
	rc = made_find(u, &f, path, rc, err);
	if (rc)
		return rc;
	*out = dcp_attrs(f.d, f.kind);
	dcp_close(f.d);
	if (where && !(*where = strdup(path)))
		rc = errmsg_nomem(err, path);
	return rc;
}

static int made_read(const struct source *s, void *buf, size_t len, uint64_t off,
		     struct errmsg *err)
{
	const struct made *const f = s->ctx;

	return dcp_read(f->d, f->kind, buf, len, off, err);
}

static void made_close(struct source *s)
{
	struct made *const f = s->ctx;

	dcp_close(f->d);
	free(f);
}

/* Open a file that is made. */
static int made_open(struct uckpt *u, const char *path, int missing,
		     struct source *out, struct errmsg *err)
{
	static const struct source_ops ops = { .read = made_read,
					       .close = made_close };
	struct made f, *copy;
	struct attrs a;
	const int rc = made_find(u, &f, path, missing, err);

	if (rc)
		return rc;
	copy = malloc(sizeof(*copy));
	if (!copy) {
		dcp_close(f.d);
		return errmsg_nomem(err, path);
	}
	*copy = f;
	*out = (struct source){ .name = path, .fd = -1, .ops = &ops, .ctx = copy };
	a = dcp_attrs(f.d, f.kind);
	fileid_from_stat(&a.st, &out->id);
	out->size = out->id.size;
	return 0;
}

int files_open(struct uckpt *u, const char *path, const struct fileid *known,
	       struct source *out, struct errmsg *err)
{
	int rc = io_open(u, path, NULL, out, err);

	if (beneath_is_missing(rc))
		rc = made_open(u, path, rc, out, err);
	return rc || !known ? rc : source_check_known(out, known, err);
}

int files_open_pt(struct uckpt *u, const char *path, const struct fileid *known,
		  struct ptfile *out, struct errmsg *err)
{
	struct source src;

	return files_open(u, path, known, &src, err) ?: ptfile_open_source(out, &src, err);
}

/* Do the entries of a directory belong to a distributed checkpoint, and to no other? */
static bool is_made_of(struct uckpt *u, const char *path, const struct dirlist *l)
{
	bool may = false;

	for (size_t i = 0; i < l->n; i++) {
		const char *const name = l->v[i].name;
		const char *const tail = strstr(name, "_states.pt");

		if (tail && !tail[strlen("_states.pt")])
			return false;
		may |= strcmp(name, DCP_METADATA) == 0 ||
		       strcmp(name, DCP_PAIR_MODEL) == 0;
	}
	return may && dcp_is_one(u, path);
}

int files_list(struct uckpt *u, const char *path, struct dirlist *out, struct errmsg *err)
{
	int rc = io_list(u, path, 0, out, err);

	if (!rc && is_made_of(u, path, out)) {
		for (enum dcp_zerofile_kind k = 0; !rc && k < DCP_ZEROFILE_KINDS; k++)
			if (dirlist_add(out, dcp_zerofile_name(k), S_IFREG, S_IFREG))
				rc = errmsg_nomem(err, path);
		dirlist_sort(out, out->ndirs - 1);
	}
	if (rc)
		dirlist_done(out);
	return rc;
}

bool files_has(struct uckpt *u, const char *path,
	       bool (*wanted)(const char *name))
{
	struct dirlist l = { .wanted = wanted };
	const int rc = io_list(u, path, 0, &l, NULL);
	bool found = l.found;

	for (enum dcp_zerofile_kind k = 0; !rc && !found && k < DCP_ZEROFILE_KINDS; k++)
		found = wanted(dcp_zerofile_name(k)) && is_made_of(u, path, &l);
	dirlist_done(&l);
	return !rc && found;
}
