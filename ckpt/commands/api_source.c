/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, sources, and names. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/commands/api.h"
#include "ckpt/commands/settings.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"
#include "ckpt/remote/cache.h"
#include "ckpt/remote/http.h"
#include "ckpt/remote/site.h"

/* Files of a remote store that are read twice, first for checksums and then by readers, get this
 * many times the memory of option `readahead` in addition. */
#define TWICE_FACTOR 2

/* As Linux (fs/namei.c, MAXSYMLINKS). */
#define LINKS_MAX 40

const char *uckpt_version(void)
{
	return PACKAGE_VERSION;
}

struct uckpt *uckpt_new(void)
{
	return context_new();
}

void uckpt_free(struct uckpt *u)
{
	if (!u || (u->tree && !api_is_open(u)))
		return;
	tree_close(u->tree);
	settings_free(u);
	context_free(u);
}

void uckpt_set_calls(struct uckpt *u, const struct uckpt_calls *calls)
{
	if (u && calls)
		u->calls = *calls;
}

void uckpt_hide_secrets(char *text)
{
	if (text)
		site_hide_secrets(text);
}

int uckpt_open(struct uckpt *u, const char *const *paths, size_t n, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct settings *s;
	int rc;

	if (!u || !paths || !n)
		return api_refuse(err);
	if (u->tree)
		return errmsg_set(err, -EBUSY, "a source is open");
	s = settings_of(u);
	if (!s)
		return errmsg_nomem(err, NULL);
	free(s->tree.source); /* left by a failed attempt */
	s->tree.source = NULL;
	rc = settings_validate(s, err) ?: roots_unite(u, paths, n, true, &s->tree.source, err);
	if (rc)
		return rc;
	cache_set_limit(u, s->readahead, TWICE_FACTOR * s->readahead, true);
	u->pid = getpid();
	/* A server that stalls repeatedly must not delay this by more than one deadline. */
	http_begin_together(u);
	rc = tree_open(&s->tree, &u->tree, err);
	http_end_together(u);
	return rc;
}

const char *uckpt_source_name(const struct uckpt *u)
{
	return u && u->settings ? u->settings->tree.source : NULL;
}

const char *uckpt_source_root(const struct uckpt *u, size_t i)
{
	const char *source = uckpt_source_name(u);

	return source && i < roots_count(u, source) ? roots_root(u, source, i) : NULL;
}

bool uckpt_is_view(const struct uckpt *u)
{
	return api_is_open(u) && tree_is_immutable(u->tree);
}

bool uckpt_renew(struct uckpt *u)
{
	return api_is_open(u) && tree_renew(u->tree);
}

void uckpt_prefetch(struct uckpt *u)
{
	if (api_is_open(u))
		tree_warm(u->tree);
}

void uckpt_trim(struct uckpt *u)
{
	if (u)
		cache_trim(u);
}

void uckpt_stop(struct uckpt *u)
{
	if (u)
		http_stop(u);
}

static int64_t to_ns(const struct timespec *t)
{
	return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

void api_attr(const struct tree_attr *a, struct uckpt_attr *out)
{
	const struct stat *st = &a->st;

	*out = (struct uckpt_attr){
		.node = st->st_ino,
		.size = (uint64_t)st->st_size,
		.blocks = (uint64_t)st->st_blocks,
		.atime_ns = to_ns(&st->st_atim),
		.mtime_ns = to_ns(&st->st_mtim),
		.ctime_ns = to_ns(&st->st_ctim),
		.mode = st->st_mode,
		.nlink = (uint32_t)st->st_nlink,
		.uid = st->st_uid,
		.gid = st->st_gid,
		.blksize = (uint32_t)st->st_blksize,
		.timeout = a->timeout,
	};
}

int uckpt_stat(struct uckpt *u, uint64_t node, struct uckpt_attr *out, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct tree_attr a;
	int rc;

	if (!api_is_open(u) || !out)
		return api_refuse(err);
	rc = tree_getattr(u->tree, node, &a, err);
	if (!rc)
		api_attr(&a, out);
	return rc;
}

/* Could this be the name of an entry of a directory? */
static bool is_name(const char *name)
{
	return *name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

int uckpt_lookup(struct uckpt *u, uint64_t dir, const char *name, struct uckpt_attr *out,
		 double *timeout, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct tree_attr a;
	double moment = 0;
	int rc;

	if (!api_is_open(u) || !name || !out)
		return api_refuse(err);
	if (strlen(name) > NAME_MAX)
		return -ENAMETOOLONG;
	rc = is_name(name) ? tree_lookup(u->tree, dir, name, &a, &moment, err) : -ENOENT;
	if (!rc)
		api_attr(&a, out);
	if (timeout)
		*timeout = moment;
	return rc;
}

int uckpt_readlink(struct uckpt *u, uint64_t node, char *buf, size_t size)
{
	return api_is_open(u) && buf ? tree_readlink(u->tree, node, buf, size) : -EINVAL;
}

/* A path being followed: the directories so far, and the rest of the path. */
struct walk {
	struct uckpt *u;
	uint64_t node[PATH_MAX / 2];
	size_t depth;
	char left[2 * PATH_MAX + 2];
	unsigned links;
};

/* The walk has reached a link: put the link's target before the rest of the path. */
static int follow(struct walk *w, uint64_t link)
{
	char target[PATH_MAX + 1], rest[PATH_MAX + 1];
	const int n = uckpt_readlink(w->u, link, target, PATH_MAX);

	if (n < 0)
		return n;
	if (++w->links > LINKS_MAX || n == 0 || target[0] == '/' || strlen(w->left) > PATH_MAX)
		return -ELOOP;
	strcpy(rest, w->left);
	snprintf(w->left, sizeof(w->left), "%.*s/%s", n, target, rest);
	return 0;
}

/* Take the next component off the path. */
static int step(struct walk *w, struct uckpt_error *error)
{
	char *name = w->left + strspn(w->left, "/");
	const size_t n = strcspn(name, "/");
	struct uckpt_attr a;
	char own[NAME_MAX + 1];
	int rc;

	if (n > NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(own, name, n);
	own[n] = '\0';
	memmove(w->left, name + n, strlen(name + n) + 1);
	if (n == 0 || strcmp(own, ".") == 0)
		return 0;
	if (strcmp(own, "..") == 0)
		return w->depth && w->depth-- ? 0 : -ENOENT;
	rc = uckpt_lookup(w->u, w->node[w->depth], own, &a, NULL, error);
	if (!rc && (a.mode & S_IFMT) == S_IFLNK)
		return follow(w, a.node);
	if (!rc && w->depth + 1 == PATH_MAX / 2)
		rc = -ENAMETOOLONG;
	if (!rc)
		w->node[++w->depth] = a.node;
	return rc;
}

int uckpt_find(struct uckpt *u, const char *path, uint64_t *node, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct walk *w;
	int rc = 0;

	if (!api_is_open(u) || !path || !node)
		return api_refuse(err);
	if (strlen(path) > PATH_MAX)
		return -ENAMETOOLONG;
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->u = u;
	w->node[0] = UCKPT_ROOT;
	strcpy(w->left, path);
	while (!rc && *w->left)
		rc = step(w, error);
	if (!rc)
		*node = w->node[w->depth];
	free(w);
	return rc;
}

int uckpt_dir_open(struct uckpt *u, uint64_t node, struct uckpt_dir **out, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);

	return api_is_open(u) && out ? tree_dir_open(u->tree, node, out, err) : api_refuse(err);
}

int uckpt_dir_next(struct uckpt_dir *d, uint64_t *pos, struct uckpt_entry *out,
		   struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);

	return d && pos && out ? tree_dir_next(d, pos, out, err) : api_refuse(err);
}

int uckpt_dir_stat(struct uckpt_dir *d, const struct uckpt_entry *e, struct uckpt_attr *out,
		   double *timeout)
{
	struct tree_attr a;
	int rc;

	if (!d || !e || !out)
		return -EINVAL;
	if (!tree_dir_has_attrs(d, e))
		return -EAGAIN;
	rc = tree_getattr(d->t, e->node, &a, NULL);
	if (rc)
		return rc;
	api_attr(&a, out);
	if (timeout)
		*timeout = tree_entry_timeout(d->t, d->ino, &a);
	return 0;
}

uint64_t uckpt_dir_parent(const struct uckpt_dir *d)
{
	return d ? d->parent : 0;
}

bool uckpt_dir_is_immutable(const struct uckpt_dir *d)
{
	return d && d->immutable;
}

void uckpt_dir_readers(const struct uckpt_dir *d, struct uckpt_readers *out)
{
	if (d && out)
		*out = (struct uckpt_readers){ d->readable_by.uid, d->readable_by.gid,
					       d->readable_by.mode };
}

void uckpt_dir_close(struct uckpt_dir *d)
{
	if (d)
		tree_dir_close(d);
}
