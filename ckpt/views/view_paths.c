/* SPDX-License-Identifier: Apache-2.0 */
/* ds_to_universal.py joins a parameter's name to the path of zero/, and makes the
 * directories that are missing. */
#include "ckpt/views/view_paths.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/format/names.h"

struct view_path {
	const char *path; /* must be first: array_by_text */
	size_t number, parent;
};

static const char *name_of(const struct view_paths *x, size_t i)
{
	return *(const char *const *)((const char *)x->v + i * x->size);
}

/* Record names that cannot be paths.  True if a name has a slash. */
static bool look_at_names(struct view_paths *x, const char *file)
{
	const char *first = NULL;
	bool nested = false;
	size_t n = 0;

	for (size_t i = 0; i < x->n; i++) {
		const char *name = name_of(x, i);

		nested |= strchr(name, '/') != NULL;
		if (!names_is_param(name) && !n++)
			first = name;
	}
	if (n)
		errmsg_set(&x->refused, 0,
			   "%s: '%.100s' cannot be a directory's name, nor can the names"
			   " of %zu other parameters",
			   file, first, n - 1);
	return nested;
}

static int by_path(const void *a, const void *b)
{
	const struct view_path *x = a, *y = b;

	return strcmp(x->path, y->path) ?: ORDER(x->number, y->number);
}

/* List the directories of parameters and their parents; of equal paths the parameter comes
 * first. */
static bool list_dirs(struct view_paths *x, struct view_path **v, size_t *n)
{
	size_t cap = 0;

	for (size_t i = 0; i < x->n; i++) {
		const char *name = name_of(x, i);
		const char *slash = name;

		if (!arena_reserve(&x->arena, v, *n, &cap, *n + 1, sizeof(**v)))
			return false;
		(*v)[(*n)++] = (struct view_path){ name, i, VIEW_PATH_TOP };
		for (; (slash = strchr(slash, '/')); slash++) {
			const char *path = arena_strndup(&x->arena, name, (size_t)(slash - name));

			if (!path || !arena_reserve(&x->arena, v, *n, &cap, *n + 1, sizeof(**v)))
				return false;
			(*v)[(*n)++] = (struct view_path){ path, SIZE_MAX, VIEW_PATH_TOP };
		}
	}
	return true;
}

static const struct view_path *find_path(const struct view_paths *x, const char *path)
{
	return array_find(x->sorted, x->ndirs, sizeof(*x->sorted), path);
}

/* Number the directories, and find the parent of each. */
static int nest(struct view_paths *x)
{
	struct view_path *v = NULL;
	size_t all = 0, n = 0;

	if (!list_dirs(x, &v, &all))
		return -ENOMEM;
	qsort(v, all, sizeof(*v), by_path);
	for (size_t i = 0; i < all; i++)
		if (!n || strcmp(v[n - 1].path, v[i].path) != 0)
			v[n++] = v[i];
	x->dirs = arena_alloc(&x->arena, (n + 1) * sizeof(*x->dirs));
	if (!x->dirs)
		return -ENOMEM;
	x->sorted = v;
	x->ndirs = x->n;
	for (size_t i = 0; i < n; i++)
		if (v[i].number == SIZE_MAX)
			v[i].number = x->ndirs++;
	for (size_t i = 0; i < n; i++) {
		const char *path = v[i].path, *slash = strrchr(path, '/');
		const char *above =
			slash ? arena_strndup(&x->arena, path, (size_t)(slash - path)) : NULL;

		if (above)
			v[i].parent = find_path(x, above)->number;
		x->dirs[v[i].number] = v[i];
	}
	return x->arena.failed ? -ENOMEM : 0;
}

int view_paths_init(struct view_paths *x, const void *v, size_t n, size_t size, const char *file,
		    struct errmsg *err)
{
	*x = (struct view_paths){ .v = v, .n = n, .size = size, .ndirs = n };
	if (look_at_names(x, file) && !*x->refused.text && nest(x))
		return errmsg_nomem(err, file);
	if (*x->refused.text)
		x->ndirs = 1; /* named after the name that caused the error */
	return 0;
}

void view_paths_done(struct view_paths *x)
{
	arena_done(&x->arena);
}

int view_paths_check(const struct view_paths *x, struct errmsg *err)
{
	return *x->refused.text ? errmsg_set(err, -ENOTSUP, "%s", x->refused.text) : 0;
}

static const char *path_of(const struct view_paths *x, size_t i)
{
	return x->dirs ? x->dirs[i].path : name_of(x, i);
}

const char *view_paths_name(const struct view_paths *x, size_t i)
{
	const char *path = path_of(x, i);
	const char *slash = x->dirs ? strrchr(path, '/') : NULL;

	return slash ? slash + 1 : path;
}

size_t view_paths_parent(const struct view_paths *x, size_t i)
{
	return x->dirs ? x->dirs[i].parent : VIEW_PATH_TOP;
}

int64_t view_paths_find(const struct view_paths *x, size_t parent, const char *name)
{
	const struct view_path *found;
	const char *top;
	char *path;

	if (*x->refused.text || (!x->dirs && parent != VIEW_PATH_TOP) || strchr(name, '/'))
		return -1;
	if (!x->dirs) {
		top = array_find(x->v, x->n, x->size, name);
		return top ? (top - (const char *)x->v) / (ptrdiff_t)x->size : -1;
	}
	if (parent == VIEW_PATH_TOP)
		path = strdup(name);
	else if (asprintf(&path, "%s/%s", x->dirs[parent].path, name) < 0)
		path = NULL;
	found = path ? find_path(x, path) : NULL;
	free(path);
	return found ? (int64_t)found->number : -1;
}
