/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are there, and then those that are made of a distributed checkpoint, or of one
 * that DeepSpeed saved without ZeRO. */
#include "ckpt/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/cache/cache.h"
#include "ckpt/dcp/dcp.h"
#include "ckpt/dcp/stage0.h"
#include "ckpt/format/names.h"
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
	size_t rank; /* of model parallelism */
	enum dcp_zerofile_kind kind;
};

static bool may_be_made(const char *name)
{
	return fnmatch("mp_rank_*_model_states.pt", name, 0) == 0 ||
	       fnmatch("*zero_pp_rank_0_mp_rank_*_optim_states.pt", name, 0) == 0;
}

static bool is_optimizer(const char *name)
{
	return names_parse(name).kind == TAG_FILE_OPTIM;
}

/* Was an optimizer's shard of ZeRO written beside model states of which files are made? */
static bool is_outdated(struct uckpt *u, const char *dir)
{
	struct dirlist l = { .wanted = is_optimizer };
	char *const beside =
		stage0_is_dir(dir)
			? strndup(dir, (size_t)(strrchr(dir, '/') - dir))
			: NULL;
	const bool is =
		beside && !io_list(u, beside, 0, &l, NULL) && l.found;

	free(beside);
	dirlist_done(&l);
	return is;
}

/* Find the file that a path, at which nothing is, leads to: 0, or `missing` if it leads to
 * none of these.  The caller closes `f->d`. */
static int made_find(struct uckpt *u, struct made *f, const char *path, int missing,
		     struct errmsg *err)
{
	const char *const slash = strrchr(path, '/');
	struct errmsg why = { "" };
	char *dir;
	int rc;

	if (!slash || !may_be_made(slash + 1))
		return missing;
	dir = strndup(path, slash == path ? 1 : (size_t)(slash - path));
	if (!dir)
		return errmsg_nomem(err, path);
	rc = is_outdated(u, dir) ? -ENOENT : dcp_open(u, dir, &f->d, &why);
	free(dir);
	if (!rc && !dcp_find(f->d, slash + 1, &f->rank, &f->kind)) {
		dcp_close(f->d);
		return missing;
	}
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
	*out = dcp_attrs(f.d, f.rank, f.kind);
	dcp_close(f.d);
	if (where && !(*where = strdup(path)))
		rc = errmsg_nomem(err, path);
	return rc;
}

static int made_read(const struct source *s, void *buf, size_t len, uint64_t off,
		     struct errmsg *err)
{
	const struct made *const f = s->ctx;

	return dcp_read(f->d, f->rank, f->kind, buf, len, off, err);
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
	a = dcp_attrs(f.d, f.rank, f.kind);
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

/* May the entries of a directory be those of a checkpoint without ZeRO? */
static bool may_be_stage0(const struct dirlist *l)
{
	bool may = false;

	for (size_t i = 0; i < l->n; i++) {
		/* A universal checkpoint has model states, too. */
		if (names_parse(l->v[i].name).kind == TAG_FILE_OPTIM ||
		    strcmp(l->v[i].name, "zero") == 0)
			return false;
		may |= strcmp(l->v[i].name, STAGE0_FIRST) == 0;
	}
	return may;
}

/* Open what the entries of a directory show of a checkpoint without ZeRO; NULL: they show
 * none, or it is refused. */
static struct dcp *open_stage0(struct uckpt *u, const char *path,
			       const struct dirlist *l)
{
	struct dcp *d = NULL;
	char *dir;

	if (!may_be_stage0(l) || asprintf(&dir, "%s/" STAGE0_DIR, path) < 0)
		return NULL;
	if (dcp_open(u, dir, &d, NULL))
		d = NULL;
	free(dir);
	return d;
}

/* Let a directory show its model states as those of ZeRO, and optimizers. */
static int list_stage0(struct dirlist *l, const struct dcp *d, const char *path)
{
	enum dcp_zerofile_kind kind;
	size_t rank;
	char *dir;
	int rc = 0;

	if (asprintf(&dir, "%s/" STAGE0_DIR, path) < 0)
		return -ENOMEM;
	for (size_t i = 0; !rc && i < dcp_ranks(d); i++)
		rc = dirlist_add(l, dcp_name(d, i, DCP_ZEROFILE_OPTIM), S_IFREG,
				 S_IFREG);
	rc = rc ?: dirlist_finish(l, dir);
	for (size_t i = 0; !rc && i < l->n; i++)
		if (dcp_find(d, l->v[i].name, &rank, &kind))
			l->v[i].dir = l->ndirs - 1;
	free(dir);
	return rc;
}

int files_list(struct uckpt *u, const char *path, struct dirlist *out, struct errmsg *err)
{
	struct dcp *d;
	int rc = io_list(u, path, 0, out, err);

	if (!rc && is_made_of(u, path, out)) {
		for (enum dcp_zerofile_kind k = 0; !rc && k < DCP_ZEROFILE_KINDS; k++)
			if (dirlist_add(out, dcp_zerofile_name(k), S_IFREG, S_IFREG))
				rc = errmsg_nomem(err, path);
		dirlist_sort(out, out->ndirs - 1);
	}
	d = rc ? NULL : open_stage0(u, path, out);
	if (d) {
		if (list_stage0(out, d, path))
			rc = errmsg_nomem(err, path);
		dcp_close(d);
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
	if (!rc && !found && may_be_stage0(&l))
		found = wanted(dcp_zerofile_name(DCP_ZEROFILE_OPTIM)) &&
			stage0_look(u, path) != STAGE0_NONE;
	dirlist_done(&l);
	return !rc && found;
}

bool files_has_no_optimizer(struct uckpt *u, const char *path)
{
	struct dirlist l = { 0 };
	const bool is = !io_list(u, path, 0, &l, NULL) &&
			may_be_stage0(&l) &&
			stage0_look(u, path) == STAGE0_WEIGHTS;

	dirlist_done(&l);
	return is;
}
