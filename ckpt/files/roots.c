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

/* --- making ------------------------------------------------------------------ */

static void union_done(struct united *u)
{
	for (size_t i = 0; i < u->n; i++)
		free(u->roots[i]);
	free(u->roots);
	free(u->name);
	*u = (struct united){ 0 };
}

static char *without_slashes(const char *dir)
{
	size_t n = strlen(dir);

	while (n > 1 && dir[n - 1] == '/')
		n--;
	return strndup(dir, n);
}

/* All roots, or the first ones and the number of the others. */
static char *union_name(const struct united *u)
{
	struct bytebuf b = { 0 };
	char *name = NULL;

	bytebuf_add_str(&b, "{");
	for (size_t i = 0; i < u->n; i++) {
		char others[32];

		if (i && b.len + strlen(u->roots[i]) > NAME_LEN_MAX) {
			snprintf(others, sizeof(others), ",...%zu more",
				 u->n - i);
			bytebuf_add_str(&b, others);
			break;
		}
		if (i)
			bytebuf_add_str(&b, ",");
		bytebuf_add_str(&b, u->roots[i]);
	}
	bytebuf_add_str(&b, "}");
	bytebuf_add_u8(&b, '\0');
	if (!b.failed)
		name = strdup((const char *)b.data);
	bytebuf_done(&b);
	return name;
}

/* Are both of the same roots in the same order? */
static bool same_roots(const struct united *a, const struct united *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->roots[i], b->roots[i]) != 0)
			return false;
	return true;
}

/* Two long unions may begin alike: the later one gets a number. */
static bool number_name(struct united *u)
{
	char *numbered;

	if (!find(u->name))
		return true;
	if (asprintf(&numbered, "%.*s;%zu}", (int)strlen(u->name) - 1, u->name,
		     nunions) < 0)
		return false;
	free(u->name);
	u->name = numbered;
	return true;
}

/* Keep the union, or drop it for an equal one. */
static int keep(struct united *u, char **path, struct errmsg *err)
{
	for (size_t i = 0; i < nunions; i++)
		if (same_roots(&unions[i], u)) {
			union_done(u);
			*path = strdup(unions[i].name);
			return *path ? 0 : errmsg_nomem(err, NULL);
		}
	if (nunions == ROOTS_UNIONS_MAX) {
		union_done(u);
		return errmsg_set(err, -E2BIG, "too many unions of directories");
	}
	u->name = union_name(u);
	*path = u->name && number_name(u) ? strdup(u->name) : NULL;
	if (!*path) {
		union_done(u);
		return errmsg_nomem(err, NULL);
	}
	u->len = strlen(u->name);
	unions[nunions++] = *u;
	return 0;
}

static int set_root(struct united *u, const char *dir, bool absolute,
		    struct errmsg *err)
{
	char *root = NULL;
	int rc;

	if (site_is_url(dir) || (site_has_scheme(dir) && access(dir, F_OK) < 0)) {
		rc = site_add(dir, &root, err);
		if (rc)
			return rc;
	} else {
		root = absolute ? realpath(dir, NULL) : without_slashes(dir);
	}
	if (!root && absolute)
		return errmsg_set(err, -errno, "%s: %s", dir, strerror(errno));
	if (!root)
		return errmsg_nomem(err, dir);
	u->roots[u->n++] = root;
	return 0;
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
		rc = *dirs[i] ? set_root(&u, dirs[i], absolute, err)
			      : errmsg_set(err, -EINVAL, "an empty name");
	if (!rc && n == 1) {
		*path = u.roots[0];
		u.roots[0] = NULL;
	} else if (!rc) {
		return keep(&u, path, err);
	}
	union_done(&u);
	return rc;
}

/* Is it "{A,B}", and no file of this name? */
static bool is_braced(const char *arg)
{
	const size_t n = strlen(arg);

	return n > 2 && arg[0] == '{' && arg[n - 1] == '}' &&
	       access(arg, F_OK) < 0;
}

/* Unite what is between the braces of `arg`. */
static int unite_braced(const char *arg, bool absolute, char **path,
			struct errmsg *err)
{
	char *const text = strndup(arg + 1, strlen(arg) - 2);
	char **const dirs = calloc(strlen(arg), sizeof(*dirs));
	char *rest = text;
	size_t n = 0;
	int rc;

	while (text && dirs && rest)
		dirs[n++] = strsep(&rest, ",");
	rc = text && dirs ? unite(dirs, n, absolute, path, err)
			  : errmsg_nomem(err, NULL);
	free(text);
	free(dirs);
	return rc;
}

int roots_unite(char *const *dirs, size_t n, char **path, struct errmsg *err)
{
	assert(n > 0);
	return n == 1 && is_braced(dirs[0])
		       ? unite_braced(dirs[0], false, path, err)
		       : unite(dirs, n, false, path, err);
}

int roots_absolute(char *const *dirs, size_t n, char **path, struct errmsg *err)
{
	assert(n > 0);
	return n == 1 && is_braced(dirs[0])
		       ? unite_braced(dirs[0], true, path, err)
		       : unite(dirs, n, true, path, err);
}
