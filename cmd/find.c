/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the files of a source by patterns.  Components without a wildcard are looked up, which
 * finds views that no directory lists, and makes those of no other tag.
 */
#include "cmd/find.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/array.h"

struct find {
	struct uckpt *u;
	bool deep;
	struct found_list *to;
	struct uckpt_error *err;
};

static int fail(const struct find *f, int rc, const char *path)
{
	if (f->err->text[0] == '\0')
		snprintf(f->err->text, sizeof(f->err->text), "%s: %s",
			 *path ? path : "/", strerror(-rc));
	return rc;
}

/* Append `path`, and take ownership of it. */
static int add(struct find *f, char *path, uint64_t node, uint32_t type)
{
	struct found_list *l = f->to;

	if (!array_reserve(&l->v, &l->cap, l->n + 1, sizeof(*l->v))) {
		free(path);
		return fail(f, -ENOMEM, "");
	}
	l->v[l->n++] = (struct found){ path, node, type };
	return 0;
}

/* Replace a link by its target, if that exists. */
static int resolve(const struct find *f, const char *path, uint64_t *node,
		   uint32_t *type)
{
	struct uckpt_attr attr;
	uint64_t target;
	int rc;

	if (*type != S_IFLNK)
		return 0;
	rc = uckpt_find(f->u, path, &target, f->err);
	if (rc == -ENOENT || rc == -ELOOP || rc == -ENOTDIR) {
		f->err->text[0] = '\0';
		return 0;
	}
	rc = rc ?: uckpt_stat(f->u, target, &attr, f->err);
	if (rc)
		return fail(f, rc, path);
	*node = target;
	*type = attr.mode & S_IFMT;
	return 0;
}

static int walk(struct find *f, const char *path, uint64_t dir,
		const char *pattern);

/* Continue with entry `e` of directory `path`.  `rest` of the pattern follows, or is NULL below
 * a directory that has matched. */
static int enter(struct find *f, const char *path, const struct uckpt_entry *e,
		 const char *rest)
{
	const bool link = e->type == S_IFLNK;
	uint64_t node = e->node;
	uint32_t type = e->type;
	char *below;
	int rc;

	if (!*e->name || strchr(e->name, '/') || strcmp(e->name, ".") == 0 ||
	    strcmp(e->name, "..") == 0)
		return fail(f, -EBADMSG, e->name);
	if (asprintf(&below, "%s%s%s", path, *path ? "/" : "", e->name) < 0)
		return fail(f, -ENOMEM, path);
	rc = resolve(f, below, &node, &type);
	if (!rc && type == S_IFDIR && (rest || (f->deep && !link)))
		rc = walk(f, below, node, rest);
	else if (!rc && !(rest && *rest) && !(f->deep && type == S_IFDIR))
		return add(f, below, node, type);
	free(below);
	return rc;
}

/* Fill in an entry by its name.  -ENOENT. */
static int look_at(const struct find *f, uint64_t dir, struct uckpt_entry *e)
{
	struct uckpt_attr attr;
	const int rc = uckpt_lookup(f->u, dir, e->name, &attr, NULL, f->err);

	if (rc)
		return rc == -ENOENT ? rc : fail(f, rc, e->name);
	e->node = attr.node;
	e->type = attr.mode & S_IFMT;
	return 0;
}

/* Enter the entries of a directory that match the `len` bytes at `word`, all if it is
 * NULL. */
static int list(struct find *f, const char *path, uint64_t dir,
		const char *word, size_t len)
{
	char *pattern = word ? strndup(word, len) : NULL;
	const char *rest = word ? word + len : NULL;
	struct uckpt_dir *d = NULL;
	struct uckpt_entry e;
	uint64_t pos = 0;
	int rc = word && !pattern ? -ENOMEM
				  : uckpt_dir_open(f->u, dir, &d, f->err);

	while (!rc && (rc = uckpt_dir_next(d, &pos, &e, f->err)) == 1) {
		rc = 0;
		if (pattern && fnmatch(pattern, e.name, FNM_PERIOD) != 0)
			continue;
		rc = (e.type ? 0 : look_at(f, dir, &e))
			     ?: enter(f, path, &e, rest);
	}
	uckpt_dir_close(d);
	free(pattern);
	return rc ? fail(f, rc, path) : 0;
}

/* Enter the entry whose name is the `len` bytes at `word`. */
static int look_up(struct find *f, const char *path, uint64_t dir,
		   const char *word, size_t len)
{
	struct uckpt_entry e = { 0 };
	int rc;

	if (len >= sizeof(e.name))
		return 0;
	memcpy(e.name, word, len);
	rc = look_at(f, dir, &e);
	return rc == -ENOENT ? 0 : rc ?: enter(f, path, &e, word + len);
}

/* Find the files in directory `path` that match the pattern; NULL: all. */
static int walk(struct find *f, const char *path, uint64_t dir,
		const char *pattern)
{
	size_t len;

	if (pattern)
		pattern += strspn(pattern, "/");
	if (!pattern || !*pattern)
		return list(f, path, dir, NULL, 0);
	len = strcspn(pattern, "/");
	return (strcspn(pattern, "*?[\\") < len ? list : look_up)(f, path, dir,
								  pattern, len);
}

int find_pattern(struct uckpt *u, const char *pattern, bool deep,
		 struct found_list *to, struct uckpt_error *err)
{
	struct find f = { u, deep, to, err };
	const size_t before = to->n;
	int rc;

	err->text[0] = '\0';
	rc = walk(&f, "", UCKPT_ROOT, pattern);
	return rc || to->n > before || !*pattern ? rc
						 : fail(&f, -ENOENT, pattern);
}

void found_sort(struct found_list *l)
{
	size_t n = 0;

	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), array_by_text);
	for (size_t i = 0; i < l->n; i++)
		if (n && strcmp(l->v[n - 1].path, l->v[i].path) == 0)
			free(l->v[i].path);
		else
			l->v[n++] = l->v[i];
	l->n = n;
}

void found_done(struct found_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i].path);
	free(l->v);
}
