/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face directory: weights alone, of any type. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/files/files.h"
#include "ckpt/states/state.h"
#include "ckpt/states/statetree_impl.h"

struct hf_tree {
	struct statetree t;
	struct hfdir dir;
};

static struct hfdir *dir_of(struct statetree *t)
{
	return &((struct hf_tree *)t)->dir;
}

static int statetree_hf_states(struct statetree *t, const char *param,
			       struct statetree_states *out, struct errmsg *err)
{
	(void)t;
	(void)param;
	return statetree_add_state(out, "fp32", strlen("fp32"), err);
}

static int statetree_hf_open_state(struct statetree *t, const char *param,
				   const char *name, struct state *out,
				   struct errmsg *err)
{
	const struct hfdir *const d = dir_of(t);
	const struct hfdir_tensor *const tensor = hfdir_find(d, param);
	const struct hfdir_file *file;
	struct tensor described;
	struct source src;
	int rc;

	assert(tensor && strcmp(name, "fp32") == 0);
	file = &d->files[tensor->file];
	rc = files_open_known(&src, file->path, &file->file, err);
	if (rc)
		return rc;
	hfdir_describe(tensor, &described);
	state_init(out, &src, &described, tensor->offset);
	return 0;
}

static void statetree_hf_close_tree(struct statetree *t)
{
	hfdir_done(dir_of(t));
	free(t);
}

int statetree_open_hf(const char *path, struct statetree **out,
		      struct errmsg *err)
{
	static const struct statetree_ops ops = {
		.kind = "Hugging Face model",
		.weights_alone = true,
		.states = statetree_hf_states,
		.open_state = statetree_hf_open_state,
		.close = statetree_hf_close_tree
	};
	struct hf_tree *const h = calloc(1, sizeof(*h));
	int rc;

	if (!h)
		return errmsg_nomem(err, NULL);
	rc = hfdir_open(&h->dir, path, err);
	if (rc) {
		free(h);
		return rc;
	}
	h->t.ops = &ops;
	for (size_t i = 0; !rc && i < h->dir.n; i++)
		rc = statetree_add(&h->t, h->dir.v[i].name, err);
	if (rc)
		statetree_close(&h->t);
	else
		*out = &h->t;
	return rc;
}
