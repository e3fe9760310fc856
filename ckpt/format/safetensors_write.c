/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of safetensors, byte for byte (observed on the library's 0.8):
 *
 *   u64 length | {"__metadata__":{"format":"pt"},"NAME":{...},...} | blanks
 *
 * up to a multiple of eight.  Tensors, and their members in the header, are
 * sorted by type, that of the largest elements first, and then by name.  Strings
 * are escaped as serde_json does it: what JSON demands, and no more.
 */
#include "ckpt/format/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/utf8.h"

#define ALIGNMENT 8
#define LENGTH_BYTES 8

/* In the order of the library's enumeration, which is what it sorts by. */
static const enum dtype types[] = {
	DTYPE_U64, DTYPE_I64,  DTYPE_F64, DTYPE_F32, DTYPE_U32,
	DTYPE_I32, DTYPE_BF16, DTYPE_F16, DTYPE_U16, DTYPE_I16,
	DTYPE_F8_E4M3, DTYPE_F8_E5M2, DTYPE_I8, DTYPE_U8, DTYPE_BOOL,
};

#define TYPES (sizeof(types) / sizeof(*types))

static size_t find_type(enum dtype dtype)
{
	size_t i = 0;

	while (i < TYPES && types[i] != dtype)
		i++;
	return i;
}

static int safetensors_write_by_place(const void *a, const void *b, void *ctx)
{
	const struct safetensors_tensor *const v = ctx;
	const struct safetensors_tensor *const x = &v[*(const size_t *)a];
	const struct safetensors_tensor *const y = &v[*(const size_t *)b];
	const size_t s = find_type(x->dtype), t = find_type(y->dtype);

	if (s != t)
		return s < t ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* Add a tensor's member, and its bytes to `*at`. */
static void add_tensor(const struct safetensors_tensor *t, uint64_t *at,
		       struct bytebuf *out)
{
	const uint64_t end = *at + t->numel * dtype_size(t->dtype);

	bytebuf_add_u8(out, ',');
	json_write_string(out, t->name, false);
	bytebuf_add_format(out, ":{\"dtype\":\"%s\",\"shape\":[",
			   safetensors_dtype_name(t->dtype));
	for (unsigned i = 0; i < t->ndim; i++)
		bytebuf_add_format(out, "%s%" PRIu64, i ? "," : "",
				   t->shape[i]);
	bytebuf_add_format(out,
			   "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
			   *at, end);
	*at = end;
}

static int check_tensor(const struct safetensors_tensor *t,
			struct errmsg *err)
{
	if (find_type(t->dtype) == TYPES)
		return errmsg_set(err, -ENOTSUP,
				  "%s: safetensors has no type for %s", t->name,
				  dtype_name(t->dtype));
	if (!utf8_is(t->name))
		return errmsg_set(err, -ENOTSUP,
				  "%s: its name is no UTF-8, which safetensors"
				  " demands",
				  t->name);
	return 0;
}

int safetensors_write_header(const struct safetensors_tensor *v, size_t n,
			     size_t *order, struct bytebuf *out,
			     struct errmsg *err)
{
	struct bytebuf b = { 0 };
	uint64_t at = 0;
	int rc = 0;

	for (size_t i = 0; i < n; i++) {
		rc = check_tensor(&v[i], err);
		if (rc)
			return rc;
		order[i] = i;
	}
	if (n)
		qsort_r(order, n, sizeof(*order), safetensors_write_by_place,
			(void *)v);
	bytebuf_add_str(&b, "{\"__metadata__\":{\"format\":\"pt\"}");
	for (size_t i = 0; i < n && b.len <= SAFETENSORS_HEADER_MAX; i++)
		add_tensor(&v[order[i]], &at, &b);
	bytebuf_add_u8(&b, '}');
	bytebuf_add_fill(&b, ' ', -b.len % ALIGNMENT);
	if (b.len > SAFETENSORS_HEADER_MAX)
		rc = errmsg_set(err, -E2BIG,
				"a safetensors header of more than"
				" %u bytes",
				SAFETENSORS_HEADER_MAX);
	bytebuf_add_le64(out, b.len);
	bytebuf_add(out, b.data, b.len);
	if (!rc && (b.failed || out->failed))
		rc = errmsg_nomem(err, NULL);
	bytebuf_done(&b);
	return rc;
}
