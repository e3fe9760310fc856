/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States of a ZeRO checkpoint: virtual files, as sources.  Tensors are read from
 * their beginning to their end, so they are read ahead; bytes that follow in the
 * storage, as behind a tied parameter, are not.
 */
#include "ckpt/diff/diff_source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/state.h"
#include "ckpt/plan/plan.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/weights/weights.h"
#include "ckpt/zero/checkpoint.h"

struct planned_file {
	struct vfile *v;
	uint64_t end; /* of the tensor; 0 while the file's description is read */
	struct vfile_ahead ahead;
};

static int planned_read(const struct source *s, void *buf, size_t len,
			uint64_t off, struct errmsg *err)
{
	struct planned_file *const f = s->ctx;
	const uint64_t most = readahead_window();
	int64_t n;

	if (off < f->end)
		vfile_read_ahead(f->v, &f->ahead, off, len,
				 f->end - off < most ? f->end - off : most);
	n = vfile_read(f->v, buf, len, off, err);
	return n < 0 ? (int)n : 0;
}

static void planned_close(struct source *s)
{
	struct planned_file *const f = s->ctx;

	vfile_free(f->v);
	free(f);
}

/* Takes over `file`. */
static int planned_source(struct plan *p, struct vfile *file,
			  struct source *out, struct errmsg *err)
{
	static const struct source_ops ops = { .read = planned_read,
					       .close = planned_close };
	struct planned_file *const f = calloc(1, sizeof(*f));

	if (!f) {
		vfile_free(file);
		return errmsg_nomem(err, plan_zckpt(p)->dir.path);
	}
	f->v = file;
	*out = (struct source){ .name = plan_zckpt(p)->dir.path,
				.size = vfile_size(file),
				.fd = -1,
				.ops = &ops,
				.ctx = f };
	return 0;
}

/* The state is open, and its tensor will be read. */
static void expect_tensor(const struct state *s)
{
	struct planned_file *const f = s->pt.src.ctx;

	f->end = state_end(s);
}

int diff_source_state(struct plan *p, const char *param, const char *name,
		      struct state *out, struct errmsg *err)
{
	struct source src;
	struct vfile *file;
	uint64_t node;
	char *entry;
	int rc;

	if (asprintf(&entry, "%s.pt", name) < 0)
		return errmsg_nomem(err, NULL);
	rc = plan_lookup(p, PLAN_ZERO, param, &node, err)
		     ?: plan_lookup(p, node, entry, &node, err)
		     ?: plan_file_open(p, node, &file, err)
		     ?: planned_source(p, file, &src, err)
		     ?: state_open_source(out, &src, err);
	free(entry);
	if (!rc)
		expect_tensor(out);
	return rc;
}

int diff_source_weight(struct plan *p, const struct weights *w, size_t weight,
		       struct state *out, struct errmsg *err)
{
	const struct weight *const x = w->v[weight];
	const enum dtype dtype = weights_dtype(w, weight, DTYPE_F32);
	struct extent_map map = { 0 };
	struct gathers gathers = { 0 };
	struct bytebuf head = { 0 };
	struct tensor tensor;
	struct vfile *file;
	struct source src;
	int rc = weights_add(w, weight, plan_zckpt(p), dtype, &map, &gathers,
			     err);

	if (!rc) {
		file = vfile_new_tensors(plan_shards(p), &head, &map, 1,
					 &gathers, err);
		rc = file ? planned_source(p, file, &src, err) : -ENOMEM;
	}
	if (!rc) {
		tensor_init(&tensor, dtype, x->shape, x->ndim, false);
		state_init(out, &src, &tensor, 0);
		expect_tensor(out);
	}
	extent_done(&map);
	gathers_done(&gathers);
	return rc;
}
