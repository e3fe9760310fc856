/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/foreign/hf.h"

#include <string.h>

#include "ckpt/roots/roots.h"

static struct hf_checkpoint *hf_of(struct checkpoint *c)
{
	return (struct hf_checkpoint *)c;
}

static int hf_list(struct checkpoint *c, const char *path, struct errmsg *err)
{
	struct hfdir *const d = &hf_of(c)->d;
	const int rc = hfdir_open(c->u, d, path, err);

	if (rc)
		return rc;
	c->path = d->path;
	c->tag = roots_base(c->u, d->path);
	c->st = d->st;
	c->files = d->files;
	c->nfiles = d->nfiles;
	c->witness = d->nfiles - 1;
	c->mtime_s = d->files[0].mtime_s;
	c->access = c->names = d->access;
	return 0;
}

/* Listing the files has read their headers. */
static int hf_load(struct checkpoint *c, const struct user_rules *rules,
		   struct errmsg *err)
{
	(void)c;
	(void)rules;
	(void)err;
	return 0;
}

/* Weights of a format that is preferred may have been added to others. */
static bool hf_is_chosen(const struct checkpoint *c)
{
	return hfdir_is_found_by(c->u, c->path, c->files[0].name);
}

static void hf_close(struct checkpoint *c)
{
	hfdir_done(&hf_of(c)->d);
}

const struct checkpoint_ops hf_checkpoint_ops = {
	.size = sizeof(struct hf_checkpoint),
	.list = hf_list,
	.load = hf_load,
	.is_chosen = hf_is_chosen,
	.close = hf_close,
};
