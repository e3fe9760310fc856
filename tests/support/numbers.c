/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/context.h"
#include "tests/support/numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "tests/support/unit.h"

void numbers_open(struct numbers *n, const char *name)
{
	struct errmsg err = { "" };

	snprintf(n->path, sizeof(n->path), "%s/tests/numbers/%s", getenv("top_srcdir"), name);
	if (io_open_pt(test_context(), n->path, NULL, &n->file, &err))
		fail_msg("%s", err.text);
}

void numbers_close(struct numbers *n)
{
	ptfile_close(&n->file);
}

size_t numbers_count(const struct numbers *n)
{
	return value_items(n->file.root)->n;
}

const struct value *numbers_case(const struct numbers *n, size_t i)
{
	return value_items(n->file.root)->v[i];
}

size_t numbers_size(const struct value *dict, size_t i)
{
	return (size_t)value_items(value_find(dict, "sizes"))->v[i]->i;
}

/* The bytes of a tensor. */
static void *read_tensor(const struct numbers *n, const struct value *dict, const char *key,
			 size_t numel, enum dtype *dtype)
{
	const struct value *const v = value_find(dict, key);
	struct errmsg err = { "" };
	struct tensor t;
	uint64_t storage;
	size_t size;
	void *bytes;

	if (!v)
		fail_msg("%s: no '%s'", n->path, key);
	if (ptfile_tensor(&n->file, v, key, &t, &storage, &err))
		fail_msg("%s", err.text);
	assert_int_equal(t.numel, numel);
	size = dtype_size(t.dtype);
	bytes = malloc(numel * size);
	assert_non_null(bytes);
	if (source_read(&n->file.src, bytes, numel * size, storage + t.storage_offset * size, &err))
		fail_msg("%s", err.text);
	*dtype = t.dtype;
	return bytes;
}

float *numbers_floats(const struct numbers *n, const struct value *dict, const char *key,
		      size_t numel)
{
	enum dtype dtype;
	void *const bytes = read_tensor(n, dict, key, numel, &dtype);
	float *const x = malloc(numel * sizeof(*x));

	assert_non_null(x);
	cast_to_float(dtype, bytes, x, numel);
	free(bytes);
	return x;
}

int32_t *numbers_ints(const struct numbers *n, const struct value *dict, const char *key,
		      size_t numel)
{
	enum dtype dtype;
	int32_t *const x = read_tensor(n, dict, key, numel, &dtype);

	assert_int_equal(dtype, DTYPE_I32);
	return x;
}

double numbers_scalar(const struct numbers *n, const struct value *dict, const char *key)
{
	float *const p = numbers_floats(n, dict, key, 1);
	const float x = p[0];

	free(p);
	return x;
}

void numbers_near(const char *what, const float *got, const float *want, size_t numel,
		  double tolerance)
{
	double top = 0;
	size_t i;

	for (i = 0; i < numel; i++)
		top = fmax(top, fabs(want[i]));
	for (i = 0; i < numel; i++)
		if (!(fabs((double)got[i] - want[i]) <= tolerance * top))
			fail_msg("%s[%zu] is %.9g, not %.9g; the largest is %g", what, i, got[i],
				 want[i], top);
}
