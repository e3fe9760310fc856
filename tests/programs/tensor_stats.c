/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Print the shape and dtype of a .pt file's tensor and statistics of its elements:
 * of the bare tensor, or of the one under "param" as universal files have it.  For
 * the demonstration, which has neither Python nor torch.
 *
 *     tensor_stats FILE...
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "tests/support/context.h"

struct stats {
	double min, max, sum;
	uint64_t n;
};

static void add(struct stats *s, const float *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		s->min = fmin(s->min, (double)v[i]);
		s->max = fmax(s->max, (double)v[i]);
		s->sum += (double)v[i];
	}
	s->n += n;
}

/* Add the elements of a dense tensor that begins at byte `off` of the file. */
static int add_elements(struct stats *s, const struct ptfile *pt,
			const struct tensor *t, uint64_t off, struct errmsg *err)
{
	const size_t item = dtype_size(t->dtype);
	unsigned char raw[CAST_BATCH * 8];
	float batch[CAST_BATCH];

	for (uint64_t left = t->numel; left;) {
		const size_t n = left < CAST_BATCH ? (size_t)left : CAST_BATCH;
		const int rc = source_read(&pt->src, raw, n * item, off, err);

		if (rc)
			return rc;
		cast_to_float(t->dtype, raw, batch, n);
		add(s, batch, n);
		off += n * item;
		left -= n;
	}
	return 0;
}

static void print(const char *path, const struct tensor *t,
		  const struct stats *s)
{
	printf("%s: %s [", path, dtype_name(t->dtype));
	for (unsigned i = 0; i < t->ndim; i++)
		printf("%s%" PRIu64, i ? ", " : "", t->shape[i]);
	printf("] numel %" PRIu64, s->n);
	if (s->n)
		printf(" min %.6g max %.6g mean %.6g", s->min, s->max,
		       s->sum / (double)s->n);
	putchar('\n');
}

static int show(const struct ptfile *pt, const char *path, struct errmsg *err)
{
	const struct value *const wrapped = value_find(pt->root, "param");
	const struct value *const v = wrapped ? wrapped : pt->root;
	struct stats s = { .min = INFINITY, .max = -INFINITY };
	struct tensor t;
	uint64_t storage;
	int rc;

	if (!tensor_is(v))
		return errmsg_set(err, -ENOTSUP, "%s: holds no tensor but a %s",
				  path, value_kind_name(v));
	rc = ptfile_tensor(pt, v, path, &t, &storage, err);
	if (rc)
		return rc;
	if (t.dtype >= DTYPE_C64 || !tensor_is_dense(&t))
		return errmsg_set(err, -ENOTSUP, "%s: no dense real tensor",
				  path);
	rc = add_elements(&s, pt, &t,
			  storage + t.storage_offset * dtype_size(t.dtype), err);
	if (!rc)
		print(path, &t, &s);
	return rc;
}

int main(int argc, char **argv)
{
	struct errmsg err = { "" };
	int rc = argc < 2;

	for (int i = 1; !rc && i < argc; i++) {
		struct ptfile pt;

		rc = io_open_pt(test_context(), argv[i], NULL, &pt, &err);
		if (!rc) {
			rc = show(&pt, argv[i], &err);
			ptfile_close(&pt);
		}
	}
	if (rc)
		fprintf(stderr, "tensor_stats: %s\n",
			argc < 2 ? "usage: tensor_stats FILE..." : err.text);
	return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
