/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/api/api.h"

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
