/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping of bytes of files to memory. */
#include <sys/uio.h>
#include <unistd.h>

#include "ckpt/base/arena.h"
#include "ckpt/commands/api.h"

struct map {
	struct uckpt_map pieces; /* must be first: the caller's part */
	struct uckpt_file *file;
	uint64_t offset;
	struct reply_pieces w;
	/* For a file of the run, a copy: */
	struct iovec copied;
	void *copy;
};

/* Copy a file of the run, since it may be truncated at any time. */
static int copy_local(struct map *m, size_t len, struct errmsg *err)
{
	int64_t n;

	m->copy = scratch_take(len);
	if (!m->copy)
		return -ENOMEM;
	n = uckpt_file_read(m->file, m->copy, len, m->offset, (struct uckpt_error *)err);
	if (n < 0) {
		scratch_give(m->copy);
		return (int)n;
	}
	m->copied = (struct iovec){ m->copy, (size_t)n };
	m->pieces = (struct uckpt_map){ &m->copied, 1, (size_t)n };
	return 0;
}

static int map_reply(struct map *m, size_t len, struct errmsg *err)
{
	struct vfile *v = m->file->f.v;
	int rc;

	api_read_ahead(m->file, len, m->offset);
	rc = vfile_map(v, len, m->offset, &m->w, err);
	if (!rc)
		m->pieces = (struct uckpt_map){ m->w.iov, m->w.n, m->w.len };
	return rc;
}

int uckpt_file_map(struct uckpt_file *f, size_t len, uint64_t offset, struct uckpt_map **out,
		   struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct map *m;
	int rc;

	if (!f || !api_is_open(f->u) || !out)
		return api_refuse(err);
	if (len > INT64_MAX || offset > INT64_MAX)
		return -EINVAL;
	m = scratch_take(sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->file = f;
	m->offset = offset;
	m->copy = NULL;
	rc = f->f.v ? map_reply(m, len, err) : copy_local(m, len, err);
	if (rc)
		scratch_give(m);
	else
		*out = &m->pieces;
	return rc;
}

int uckpt_map_check(struct uckpt_map *pieces, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct map *m = (struct map *)pieces;

	if (!m)
		return api_refuse(err);
	return m->copy ? 0 : vfile_check_pieces(m->file->f.v, &m->w, err);
}

void uckpt_map_free(struct uckpt_map *pieces, bool sent)
{
	struct map *m = (struct map *)pieces;

	if (!m)
		return;
	if (m->copy)
		scratch_give(m->copy);
	else
		vfile_unmap(m->file->f.v, &m->w, sent);
	scratch_give(m);
}
