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
#include "ckpt/vfile/vfile_source.h"
#include "ckpt/weights/weights.h"
#include "ckpt/zero/checkpoint.h"

/* The state is open, and its tensor will be read. */
static void expect_tensor(struct state *s)
{
	vfile_source_expect(&s->pt.src, state_end(s));
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
		     ?: vfile_source_open(&src, file, plan_zckpt(p)->dir.path, err)
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
		rc = file ? vfile_source_open(&src, file, plan_zckpt(p)->dir.path, err)
			  : -ENOMEM;
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
