/* SPDX-License-Identifier: Apache-2.0 */
/* Names of unions.  A path begins with at most one, since a name begins with a brace
 * and its roots are plain directories. */
#include "ckpt/files/roots.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/remote/site.h"

/* Longer names are shortened, so that messages have room for what they say. */
#define NAME_LEN_MAX 160

struct united {
	char *name;
	size_t len;
	char **roots;
	size_t n;
};

static struct united unions[ROOTS_UNIONS_MAX];
static size_t nunions;

static const struct united *find(const char *path)
{
	for (size_t i = 0; *path == '{' && i < nunions; i++) {
		const struct united *const u = &unions[i];

		if (strncmp(path, u->name, u->len) == 0 &&
		    (path[u->len] == '/' || !path[u->len]))
			return u;
	}
	return NULL;
}

size_t roots_count(const char *path)
{
	const struct united *const u = find(path);

	return u ? u->n : 1;
}

const char *roots_below(const char *path)
{
	const struct united *const u = find(path);

	return u ? path + u->len : path;
}

char *roots_path(const char *path, size_t i)
{
	const struct united *const u = find(path);
	char *full;

	if (!u)
		return strdup(path);
	assert(i < u->n);
	return asprintf(&full, "%s%s", u->roots[i], path + u->len) < 0 ? NULL
								       : full;
}

const char *roots_base(const char *path)
{
	const struct united *const u = find(path);
	const char *const whole = u && !path[u->len] ? u->roots[0] : path;
	const char *const slash = strrchr(whole, '/');

	return slash && slash[1] ? slash + 1 : whole;
}

static void union_done(struct united *u)
{
	for (size_t i = 0; i < u->n; i++)
		free(u->roots[i]);
	free(u->roots);
	free(u->name);
}

/* Name all roots, or the first ones and the number of the others; with a number of its
 * own if another union has the name. */
static char *union_name(const struct united *u, bool numbered)
{
	struct bytebuf b = { 0 };
	char end[64] = "";
	size_t i = 0;

	for (; i < u->n; i++) {
		if (i && b.len + strlen(u->roots[i]) > NAME_LEN_MAX)
			break;
		bytebuf_add_str(&b, i ? "," : "{");
		bytebuf_add_str(&b, u->roots[i]);
	}
	if (i < u->n)
		snprintf(end, sizeof(end), ",...%zu more", u->n - i);
	if (numbered)
		snprintf(end + strlen(end), sizeof(end) - strlen(end), ";%zu",
			 nunions);
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

/* Keep the union, or drop it for an equal one. */
static int keep(struct united *u, char **path, struct errmsg *err)
{
	size_t i = 0;

	while (i < nunions && !same_roots(&unions[i], u))
		i++;
	if (i < nunions) {
		union_done(u);
	} else if (nunions == ROOTS_UNIONS_MAX) {
		union_done(u);
		return errmsg_set(err, -E2BIG, "too many unions of directories");
	} else {
		u->name = union_name(u, false);
		if (u->name && find(u->name)) {
			free(u->name);
			u->name = union_name(u, true);
		}
		if (!u->name) {
			union_done(u);
			return errmsg_nomem(err, NULL);
		}
		u->len = strlen(u->name);
		unions[nunions++] = *u;
	}
	*path = strdup(unions[i].name);
	return *path ? 0 : errmsg_nomem(err, NULL);
}

static int set_root(struct united *u, const char *dir, bool absolute,
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
		rc = site_add(dir, &root, err);
	else if (!(root = absolute ? realpath(dir, NULL) : strndup(dir, n)))
		rc = errmsg_set(err, -errno, "%s: %s", dir, strerror(errno));
	if (!rc)
		u->roots[u->n++] = root;
	return rc;
}

static int unite(char *const *dirs, size_t n, bool absolute, char **path,
		 struct errmsg *err)
{
	struct united u = { .roots = calloc(n, sizeof(*u.roots)) };
	int rc = u.roots ? 0 : errmsg_nomem(err, NULL);

	if (n > ROOTS_MAX)
		rc = errmsg_set(err, -E2BIG, "more than %u directories",
				ROOTS_MAX);
	for (size_t i = 0; !rc && i < n; i++)
		rc = set_root(&u, dirs[i], absolute, err);
	if (!rc && n > 1)
		return keep(&u, path, err);
	if (!rc)
		*path = u.roots[--u.n];
	union_done(&u);
	return rc;
}

int roots_unite(char *const *dirs, size_t n, bool absolute, char **path,
		struct errmsg *err)
{
	const size_t len = strlen(dirs[0]);
	char **parts = NULL, *text = NULL, *rest;
	int rc;

	assert(n > 0);
	/* "{A,B}", and no file has this name? */
	if (n > 1 || len < 3 || dirs[0][0] != '{' || dirs[0][len - 1] != '}' ||
	    access(dirs[0], F_OK) == 0)
		return unite(dirs, n, absolute, path, err);
	text = rest = strndup(dirs[0] + 1, len - 2);
	parts = calloc(len, sizeof(*parts));
	for (n = 0; text && parts && rest; n++)
		parts[n] = strsep(&rest, ",");
	rc = text && parts ? unite(parts, n, absolute, path, err)
			   : errmsg_nomem(err, NULL);
	free(text);
	free(parts);
	return rc;
}
