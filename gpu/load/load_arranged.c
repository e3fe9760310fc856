/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's weights are [out, in] where ours are [in, out], and it has several orders for the rows
 * of query_key_value.  A fragment is a range of our rows, hence a box of the tensor: the same range
 * of each of the tensor's rows that correspond to this rank's columns.
 */
#include <assert.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/table/partition.h"
#include "gpu/backend/backend.h"
#include "gpu/load/load_impl.h"
#include "gpu/model/gpt2.h"
#include "gpu/model/naming.h"
#include "gpu/read/upload.h"
#include "gpu/zero/zero.h"

/* The box of a fragment: elements [first, first + rows) of each of `columns` rows of the tensor.  A
 * vector is a tensor with rows of one element. */
struct box {
	uint64_t columns, rows, first;
	uint64_t column; /* first column of the box in this rank's part */
	uint64_t skip;   /* elements of the first row before the fragment */
};

static struct box box_of(const struct gpt2_param *p, const struct fragment *f)
{
	const uint64_t columns = p->ndim == 1 ? p->numel : p->shape[1];
	const uint64_t begin = f->first / columns;
	const uint64_t end = (f->first + f->numel - 1) / columns + 1;
	uint64_t at;

	if (p->ndim == 1)
		return (struct box){ .columns = f->numel, .rows = 1, .column = f->first };
	gpt2_whole_run(p, begin * columns, 1, &at);
	return (struct box){ .columns = columns,
			     .rows = end - begin,
			     .first = at / p->whole_shape[1],
			     .skip = f->first % columns };
}

/* Find all rows of the box; rows that are adjacent in the file are one run. */
static int find_box(struct load_tensor *t, const struct naming_tensor *form,
		    const struct gpt2_param *p, const struct box *x, float *to, struct errmsg *err)
{
	const uint64_t columns = p->whole_shape[p->ndim - 1];
	const uint64_t width = p->ndim == 1 ? 1 : p->whole_shape[0];
	uint64_t first = 0, n = 0;
	int rc = 0;

	for (uint64_t c = 0; c < x->columns && !rc; c++) {
		uint64_t column, from;

		gpt2_whole_run(p, x->column + c, 1, &column);
		from = naming_row(form, column % columns) * width + x->first;
		if (n && first + n == from) {
			n += x->rows;
			continue;
		}
		if (n)
			rc = load_tensor_find(t, first, n, to, err);
		to += n;
		first = from;
		n = x->rows;
	}
	return rc ? rc : load_tensor_find(t, first, n, to, err);
}

/* Transpose the box, which is column by column, into the fragment. */
static void arrange(const struct box *x, uint64_t n, const float *box, float *to)
{
	for (uint64_t i = 0; i < n; i++) {
		const uint64_t at = x->skip + i;

		to[i] = box[at % x->columns * x->rows + at / x->columns];
	}
}

int load_arranged_send(struct load *l, struct load_tensor *t, const struct naming_tensor *form,
		       const struct gpt2_param *p, const struct fragment *f, float *part)
{
	struct backend *const b = l->z->backend;
	const struct box x = box_of(p, f);
	float *const box = malloc(x.columns * x.rows * sizeof(*box));
	float *const own = malloc(f->numel * sizeof(*own));
	int rc = box && own ? 0 : errmsg_nomem(l->err, NULL);

	assert(f->numel && f->first + f->numel <= p->numel);
	if (!rc)
		rc = find_box(t, form, p, &x, box, l->err)
			     ?: load_tensor_send(l, t, l->host, l->host_upload)
			     ?: upload_finish(l->host_upload, l->err);
	if (!rc) {
		arrange(&x, f->numel, box, own);
		b->ops->to_device(b, part, own, f->numel * sizeof(*own));
	}
	free(box);
	free(own);
	return rc;
}
