/* SPDX-License-Identifier: Apache-2.0 */
/* Names of unions.  A path begins with at most one, since a name begins with a brace
 * and its roots are plain directories. */
#include "ckpt/io/roots.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/io/io.h"
#include "ckpt/remote/site.h"

/* Longer names are shortened, to leave room in messages. */
#define NAME_LEN_MAX 160

struct united {
	char *name;
	size_t len;
	char **roots;
	size_t n;
	struct united *next;
};

static const struct united *find(const struct uckpt *u, const char *path)
{
	const struct united *x = *path == '{' ? u->unions : NULL;

	while (x && (strncmp(path, x->name, x->len) != 0 || (path[x->len] != '/' && path[x->len])))
		x = x->next;
	return x;
}

size_t roots_count(const struct uckpt *u, const char *path)
{
	const struct united *x = find(u, path);

	return x ? x->n : 1;
}

const char *roots_root(const struct uckpt *u, const char *path, size_t i)
{
	const struct united *x = find(u, path);

	assert(!x || i < x->n);
	return x ? x->roots[i] : path;
}

const char *roots_below(const struct uckpt *u, const char *path)
{
	const struct united *x = find(u, path);

	return x ? path + x->len : path;
}

bool roots_are_remote(const struct uckpt *u, const char *path)
{
	const size_t n = roots_count(u, path);
	size_t i = 0;

	while (i < n && !site_is_url(roots_root(u, path, i)))
		i++;
	return i < n;
}

char *roots_path(const struct uckpt *u, const char *path, size_t i)
{
	const struct united *x = find(u, path);
	char *full;

	if (!x)
		return strdup(path);
	assert(i < x->n);
	return asprintf(&full, "%s%s", x->roots[i], path + x->len) < 0 ? NULL : full;
}

const char *roots_base(const struct uckpt *u, const char *path)
{
	const struct united *x = find(u, path);
	const char *whole = x && !path[x->len] ? x->roots[0] : path;
	const char *slash = strrchr(whole, '/');

	return slash && slash[1] ? slash + 1 : whole;
}

static void union_free(struct united *x)
{
	for (size_t i = 0; x && i < x->n; i++)
		free(x->roots[i]);
	if (x) {
		free(x->roots);
		free(x->name);
	}
	free(x);
}

void roots_done(struct uckpt *u)
{
	for (struct united *x; (x = u->unions);) {
		u->unions = x->next;
		union_free(x);
	}
}

/* Make a name of all roots, or of the first ones and the number of the others; append `number`
 * unless that is 0. */
static char *union_name(const struct united *x, size_t number)
{
	struct bytebuf b = { 0 };
	char end[64] = "";
	size_t i = 0;

	for (; i < x->n; i++) {
		if (i && b.len + strlen(x->roots[i]) > NAME_LEN_MAX)
			break;
		bytebuf_add_str(&b, i ? "," : "{");
		bytebuf_add_str(&b, x->roots[i]);
	}
	if (i < x->n)
		snprintf(end, sizeof(end), ",...%zu more", x->n - i);
	if (number)
		snprintf(end + strlen(end), sizeof(end) - strlen(end), ";%zu", number);
	bytebuf_add_str(&b, end);
	bytebuf_add_str(&b, "}");
	return bytebuf_take_text(&b);
}

static bool same_roots(const struct united *a, const struct united *b)
{
	size_t i = 0;

	while (a->n == b->n && i < a->n && !strcmp(a->roots[i], b->roots[i]))
		i++;
	return a->n == b->n && i == a->n;
}

/* Keep the union, unless there is an equal one, and give it a unique name. */
static int keep(struct uckpt *u, struct united *x, char **path, struct errmsg *err)
{
	const struct united *y = u->unions;
	size_t number = 0;

	for (; y && !same_roots(x, y); y = y->next)
		number++;
	if (y) {
		union_free(x);
		*path = strdup(y->name);
		return *path ? 0 : errmsg_nomem(err, NULL);
	}
	x->name = union_name(x, 0);
	if (x->name && find(u, x->name)) {
		free(x->name);
		x->name = union_name(x, number);
	}
	if (!x->name || !(*path = strdup(x->name))) {
		union_free(x);
		return errmsg_nomem(err, NULL);
	}
	x->len = strlen(x->name);
	x->next = u->unions;
	u->unions = x;
	return 0;
}

static int set_root(struct uckpt *u, struct united *x, const char *dir, bool absolute,
		    struct errmsg *err)
{
	size_t n = strlen(dir);
	char *root = NULL;
	int rc = 0;

	if (!n)
		return errmsg_set(err, -EINVAL, "an empty name");
	while (n > 1 && dir[n - 1] == '/')
		n--;
	if (site_is_url(dir) || (site_has_scheme(dir) && access(dir, F_OK) < 0))
		rc = site_add(u, dir, &root, err);
	else if (!(root = absolute ? realpath(dir, NULL) : strndup(dir, n)))
		rc = errmsg_set(err, -errno, "%s: %s", dir, strerror(errno));
	if (!rc)
		x->roots[x->n++] = root;
	return rc;
}

static int unite(struct uckpt *u, const char *const *dirs, size_t n, bool absolute, char **path,
		 struct errmsg *err)
{
	struct united *x = calloc(1, sizeof(*x));
	struct attrs a;
	int rc = 0;

	if (n > ROOTS_MAX)
		rc = errmsg_set(err, -E2BIG, "more than %u directories", ROOTS_MAX);
	else if (!x || !(x->roots = calloc(n, sizeof(*x->roots))))
		rc = errmsg_nomem(err, NULL);
	for (size_t i = 0; !rc && i < n; i++) {
		rc = set_root(u, x, dirs[i], absolute, err);
		if (!rc && n > 1 && !absolute)
			rc = io_stat(u, x->roots[i], 0, &a, NULL, err);
	}
	if (!rc && n > 1)
		return keep(u, x, path, err);
	if (!rc)
		*path = x->roots[--x->n];
	union_free(x);
	return rc;
}

static bool has_null(const char *const *dirs, size_t n)
{
	size_t i = 0;

	while (i < n && dirs[i])
		i++;
	return i < n;
}

int roots_unite(struct uckpt *u, const char *const *dirs, size_t n, bool absolute, char **path,
		struct errmsg *err)
{
	char **parts = NULL, *text = NULL, *rest;
	size_t len;
	int rc;

	if (!u || !dirs || !n || has_null(dirs, n))
		return errmsg_set(err, -EINVAL, "a NULL pointer, or no path");
	progress_step(u, "opening", 0, 0);
	len = strlen(dirs[0]);
	/* "{A,B}", and no file has this name? */
	if (n > 1 || len < 3 || dirs[0][0] != '{' || dirs[0][len - 1] != '}' ||
	    access(dirs[0], F_OK) == 0)
		return unite(u, dirs, n, absolute, path, err);
	text = rest = strndup(dirs[0] + 1, len - 2);
	parts = calloc(len, sizeof(*parts));
	for (n = 0; text && parts && rest; n++)
		parts[n] = strsep(&rest, ",");
	rc = text && parts ? unite(u, (const char *const *)parts, n, absolute, path, err)
			   : errmsg_nomem(err, NULL);
	free(text);
	free(parts);
	return rc;
}
