/* SPDX-License-Identifier: Apache-2.0 */
/* A universal checkpoint on a disk: a directory for each parameter in zero/,
 * with a file for each state.  The model states beside zero/ list tied names in
 * shared_params. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/dirs/names.h"
#include "ckpt/files/files.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "ckpt/states/state.h"
#include "ckpt/states/statetree_impl.h"

typedef int (*entry_fn)(void *ctx, const struct files_dir *d, const char *name,
			struct errmsg *err);

/* Call `see` for each entry that is not hidden. */
static int each_entry(const char *path, entry_fn see, void *ctx,
		      struct errmsg *err)
{
	struct files_dir *d;
	const char *name;
	int rc = files_opendir(path, &d, err);

	if (rc)
		return rc;
	while (!rc && (name = files_readdir(d)))
		if (name[0] != '.')
			rc = see(ctx, d, name, err);
	if (!rc && errno)
		rc = errmsg_errno(err, path, "cannot list");
	files_closedir(d);
	return rc;
}

/* --- states -------------------------------------------------------------------- */

static int see_file(void *ctx, const struct files_dir *d, const char *name,
		    struct errmsg *err)
{
	(void)d;
	return statetree_add_file(ctx, name, err);
}

static int statetree_universal_states(struct statetree *t, const char *param,
				      struct statetree_states *out,
				      struct errmsg *err)
{
	char *dir;
	int rc;

	if (asprintf(&dir, "%s/zero/%s", t->path, param) < 0)
		return errmsg_nomem(err, NULL);
	rc = each_entry(dir, see_file, out, err);
	free(dir);
	return rc;
}

static int statetree_universal_open_state(struct statetree *t,
					  const char *param, const char *name,
					  struct state *out, struct errmsg *err)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s/zero/%s/%s.pt", t->path, param, name) < 0)
		return errmsg_nomem(err, NULL);
	rc = state_open(out, path, err);
	free(path);
	return rc;
}

/* --- parameters ---------------------------------------------------------------- */

static int see_param(void *ctx, const struct files_dir *d, const char *name,
		     struct errmsg *err)
{
	return S_ISDIR(files_read_type(d)) ? statetree_add(ctx, name, err) : 0;
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

static int see_model(void *ctx, const struct files_dir *d, const char *file,
		     struct errmsg *err)
{
	struct statetree *const t = ctx;
	const struct ckname name = names_parse(file);
	struct ptfile pt;
	char *path;
	int rc;

	(void)d;
	if ((name.kind != TAG_FILE_MODEL && name.kind != TAG_FILE_MODEL3) || name.dp)
		return 0;
	if (asprintf(&path, "%s/%s", t->path, file) < 0)
		return errmsg_nomem(err, NULL);
	rc = ptfile_open(&pt, path, err);
	free(path);
	if (rc)
		return rc;
	rc = add_ties(t, pt.root, err);
	ptfile_close(&pt);
	return rc;
}

static int statetree_universal_ties(struct statetree *t, struct errmsg *err)
{
	return each_entry(t->path, see_model, t, err);
}

/* ------------------------------------------------------------------------------- */

static void statetree_universal_close_tree(struct statetree *t)
{
	free(t);
}

int statetree_open_universal(const char *path, struct statetree **out,
			     struct errmsg *err)
{
	static const struct statetree_ops ops = {
		.kind = "universal checkpoint",
		.states = statetree_universal_states,
		.open_state = statetree_universal_open_state,
		.ties = statetree_universal_ties,
		.close = statetree_universal_close_tree
	};
	struct statetree *const t = calloc(1, sizeof(*t));
	char *zero;
	int rc;

	if (!t)
		return errmsg_nomem(err, NULL);
	t->ops = &ops;
	if (asprintf(&zero, "%s/zero", path) < 0) {
		rc = errmsg_nomem(err, NULL);
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
