/* SPDX-License-Identifier: Apache-2.0 */
/* A universal checkpoint in files: a directory of each parameter in zero/, and
 * in it a file of each state; beside it the run's model states, which tell what is
 * tied in shared_params. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/base/source.h"
#include "ckpt/states/state.h"
#include "ckpt/states/statetree_impl.h"
#include "ckpt/pickle/value.h"

typedef int (*entry_fn)(void *ctx, int dirfd, const struct dirent *e,
			struct errmsg *err);

/* Call `see` for the entries of a directory that are not hidden. */
static int each_entry(const char *path, entry_fn see, void *ctx,
		      struct errmsg *err)
{
	DIR *const d = opendir(path);
	const struct dirent *e;
	int rc = 0;

	if (!d)
		return errmsg_set(err, -errno, "%s: cannot open: %s", path,
				  strerror(errno));
	while (!rc && (errno = 0, e = readdir(d)))
		if (e->d_name[0] != '.')
			rc = see(ctx, dirfd(d), e, err);
	if (!rc && errno)
		rc = errmsg_set(err, -errno, "%s: cannot list: %s", path,
				strerror(errno));
	closedir(d);
	return rc;
}

/* --- states -------------------------------------------------------------------- */

static int see_file(void *ctx, int dirfd, const struct dirent *e,
		    struct errmsg *err)
{
	(void)dirfd;
	return statetree_add_file(ctx, e->d_name, err);
}

static int states(struct statetree *t, const char *param,
		  struct statetree_states *out, struct errmsg *err)
{
	char *dir;
	int rc;

	if (asprintf(&dir, "%s/zero/%s", t->path, param) < 0)
		return errmsg_set(err, -ENOMEM, "out of memory");
	rc = each_entry(dir, see_file, out, err);
	free(dir);
	return rc;
}

static int open_state(struct statetree *t, const char *param, const char *name,
		      struct state *out, struct errmsg *err)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s/zero/%s/%s.pt", t->path, param, name) < 0)
		return errmsg_set(err, -ENOMEM, "out of memory");
	rc = state_open(out, path, err);
	free(path);
	return rc;
}

/* --- parameters ---------------------------------------------------------------- */

static int see_param(void *ctx, int dirfd, const struct dirent *e,
		     struct errmsg *err)
{
	struct stat st;

	if (e->d_type == DT_REG)
		return 0;
	if (e->d_type != DT_DIR &&
	    (fstatat(dirfd, e->d_name, &st, 0) < 0 || !S_ISDIR(st.st_mode)))
		return 0;
	return statetree_add(ctx, e->d_name, err);
}

/* --- ties ---------------------------------------------------------------------- */

static int add_ties(struct statetree *t, const struct value *root,
		    struct errmsg *err)
{
	const struct value_dict *const shared =
		value_pairs(value_find(root, KEY_SHARED_PARAMS));
	int rc = 0;

	for (size_t i = 0; !rc && shared && i < shared->n; i++) {
		const struct value_pair *const pair = &shared->v[i];

		if (value_is_cstr(pair->key) && value_is_cstr(pair->val))
			rc = statetree_add_tie(t, pair->key->str.p,
					       pair->val->str.p, err);
	}
	return rc;
}

static int see_model(void *ctx, int dirfd, const struct dirent *e,
		     struct errmsg *err)
{
	struct statetree *const t = ctx;
	const struct ckname name = names_parse(e->d_name);
	struct ptfile pt;
	char *path;
	int rc;

	(void)dirfd;
	if ((name.kind != CKFILE_MODEL && name.kind != CKFILE_MODEL3) || name.dp)
		return 0;
	if (asprintf(&path, "%s/%s", t->path, e->d_name) < 0)
		return errmsg_set(err, -ENOMEM, "out of memory");
	rc = ptfile_open(&pt, path, err);
	free(path);
	if (rc)
		return rc;
	rc = add_ties(t, pt.root, err);
	ptfile_close(&pt);
	return rc;
}

static int ties(struct statetree *t, struct errmsg *err)
{
	return each_entry(t->path, see_model, t, err);
}

/* ------------------------------------------------------------------------------- */

static void close_tree(struct statetree *t)
{
	free(t);
}

int statetree_open_universal(const char *path, struct statetree **out,
			     struct errmsg *err)
{
	static const struct statetree_ops ops = { .kind = "universal checkpoint",
						  .states = states,
						  .open_state = open_state,
						  .ties = ties,
						  .close = close_tree };
	struct statetree *const t = calloc(1, sizeof(*t));
	char *zero;
	int rc;

	if (!t)
		return errmsg_set(err, -ENOMEM, "out of memory");
	t->ops = &ops;
	if (asprintf(&zero, "%s/zero", path) < 0) {
		rc = errmsg_set(err, -ENOMEM, "out of memory");
	} else {
		rc = each_entry(zero, see_param, t, err);
		free(zero);
	}
	if (rc)
		statetree_close(t);
	else
		*out = t;
	return rc;
}
