/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/vfile/vfile_source.h"

#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/vfile.h"

struct opened {
	struct vfile *f;
	uint64_t end; /* of what is read in order */
	struct vfile_ahead ahead;
};

static int read_opened(const struct source *s, void *buf, size_t len,
		       uint64_t off, struct errmsg *err)
{
	struct opened *const o = s->ctx;
	const uint64_t most = vfile_window(o->f);
	int64_t n;

	if (off < o->end)
		vfile_read_ahead(o->f, &o->ahead, off, len,
				 o->end - off < most ? o->end - off : most);
	n = vfile_read(o->f, buf, len, off, err);
	return n < 0 ? (int)n : 0;
}

static void close_opened(struct source *s)
{
	struct opened *const o = s->ctx;

	vfile_free(o->f);
	free(o);
}

int vfile_source_open(struct source *s, struct vfile *f, const char *name,
		      struct errmsg *err)
{
	static const struct source_ops ops = { .read = read_opened,
					       .close = close_opened };
	struct opened *const o = calloc(1, sizeof(*o));

	if (!o) {
		vfile_free(f);
		return errmsg_nomem(err, name);
	}
	o->f = f;
	*s = (struct source){ .name = name,
			      .size = vfile_size(f),
			      .fd = -1,
			      .ops = &ops,
			      .ctx = o };
	return 0;
}

void vfile_source_expect(struct source *s, uint64_t end)
{
	((struct opened *)s->ctx)->end = end;
}
