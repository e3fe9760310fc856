/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a safetensors file, by the rules of the library that defines them (safetensors 0.8,
 * Metadata::validate):
 *
 *   length of the header (64, little-endian)
 *   {"__metadata__":{"format":"pt"},			strings only; may be absent
 *    "NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, ...}
 *   padding of blanks, as part of the header
 *   data; offsets count from here
 *
 * Tensors cover the data from its beginning to the end of the file, without gaps; each has exactly
 * the bytes that its type and shape demand.
 *
 * The header is written byte for byte as the library writes it: padded to a multiple of eight, the
 * tensors sorted by type, that of the largest elements first, and then by name.  Strings are
 * escaped as serde_json does it: only where JSON demands it.
 */
#include "ckpt/format/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/source.h"
#include "ckpt/base/text.h"

#define ALIGNMENT 8
#define LENGTH_BYTES 8

/* Limit of the elements of a tensor: their bytes, 8 for each, fit an int64_t. */
#define NUMEL_MAX (UINT64_C(1) << 58)

/* In the order of the library's enumeration, which it sorts by. */
static const struct {
	const char *name;
	enum dtype dtype;
} types[] = {
	{ "U64", DTYPE_U64 },         { "I64", DTYPE_I64 },
	{ "F64", DTYPE_F64 },         { "C64", DTYPE_C64 },
	{ "F32", DTYPE_F32 },         { "U32", DTYPE_U32 },
	{ "I32", DTYPE_I32 },         { "BF16", DTYPE_BF16 },
	{ "F16", DTYPE_F16 },         { "U16", DTYPE_U16 },
	{ "I16", DTYPE_I16 },         { "F8_E5M2FNUZ", DTYPE_F8_E5M2FNUZ },
	{ "F8_E4M3FNUZ", DTYPE_F8_E4M3FNUZ },
	{ "F8_E8M0", DTYPE_F8_E8M0 }, { "F8_E4M3", DTYPE_F8_E4M3 },
	{ "F8_E5M2", DTYPE_F8_E5M2 }, { "I8", DTYPE_I8 },
	{ "U8", DTYPE_U8 },           { "F4", DTYPE_F4_X2 },
	{ "BOOL", DTYPE_BOOL },
	/* torch has no type for these. */
	{ "F6_E2M3", DTYPE_OTHER },   { "F6_E3M2", DTYPE_OTHER },
};

/* Numbers packed into one element, as torch counts elements of the last dimension. */
static uint64_t packed(enum dtype d)
{
	return d == DTYPE_F4_X2 ? 2 : 1;
}

struct reader {
	struct safetensors *s;
	const struct source *src;
	uint64_t data; /* offset of the data, where the header ends */
	struct errmsg *err;
};

static int fail_tensor(const struct reader *r, const cJSON *entry,
		       const char *what)
{
	return errmsg_set(r->err, -EBADMSG, "%s: tensor %.200s: %s",
			  r->src->name, entry->string, what);
}

static int read_dtype(const struct reader *r, const cJSON *entry, struct stored *t)
{
	const cJSON *name = cJSON_GetObjectItemCaseSensitive(entry, "dtype");

	if (!cJSON_IsString(name))
		return fail_tensor(r, entry, "dtype is missing, or no string");
	for (size_t i = 0; i < COUNT(types); i++)
		if (strcmp(types[i].name, name->valuestring) == 0) {
			t->dtype = types[i].dtype;
			return 0;
		}
	return errmsg_set(r->err, -ENOTSUP,
			  "%s: tensor %.200s: dtype %.40s is not supported",
			  r->src->name, entry->string, name->valuestring);
}

/* The product of the sizes must not overflow even with each 0 replaced by 1, because strides are
 * computed that way. */
static int read_shape(const struct reader *r, const cJSON *entry, struct stored *t)
{
	const cJSON *list = cJSON_GetObjectItemCaseSensitive(entry, "shape");
	const int n = cJSON_GetArraySize(list);
	uint64_t *shape, product = 1;
	const cJSON *item;

	if (!cJSON_IsArray(list) || n > TENSOR_DIMS_MAX)
		return fail_tensor(r, entry,
				   "shape is missing, or no list of sizes");
	shape = arena_alloc(&r->s->arena, (size_t)n * sizeof(*shape) + 1);
	if (!shape)
		return errmsg_nomem(r->err, r->src->name);
	t->shape = shape;
	t->numel = 1;
	cJSON_ArrayForEach(item, list)
	{
		uint64_t *d = &shape[t->ndim++];

		if (!json_get_count(item, d))
			return fail_tensor(r, entry, "shape has an element that is no size");
		if (!checked_mul(product, *d ? *d : 1, &product) ||
		    product > NUMEL_MAX)
			return fail_tensor(r, entry, "shape overflows");
		t->numel *= *d;
	}
	if (packed(t->dtype) == 1)
		return 0;
	if (!n || shape[n - 1] % packed(t->dtype))
		return fail_tensor(r, entry, "shape ends within an element");
	shape[n - 1] /= packed(t->dtype);
	t->numel /= packed(t->dtype);
	return 0;
}

static uint64_t size_of(const struct stored *t)
{
	return t->numel * dtype_size(t->dtype);
}

/* Read the offsets of a tensor's data, whose length must be that of its type and shape. */
static int read_offsets(const struct reader *r, const cJSON *entry, struct stored *t)
{
	const cJSON *list =
		cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
	uint64_t begin, end;

	if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != 2 ||
	    !json_get_count(list->child, &begin) ||
	    !json_get_count(list->child->next, &end))
		return fail_tensor(r, entry, "data_offsets is missing, or no pair of offsets");
	if (end < begin)
		return fail_tensor(r, entry,
				   "data_offsets end before they begin");
	if (end > r->src->size - r->data)
		return fail_tensor(r, entry, "data_offsets end behind the file: truncated?");
	if (t->dtype == DTYPE_OTHER) {
		t->ndim = 0;
		t->numel = end - begin;
	}
	if (end - begin != size_of(t))
		return fail_tensor(r, entry,
				   "data_offsets do not fit dtype and shape");
	t->storage = r->data + begin;
	t->storage_numel = t->numel;
	return 0;
}

static int read_tensor(const struct reader *r, const cJSON *entry, struct stored *t)
{
	int rc;

	if (!cJSON_IsObject(entry))
		return fail_tensor(r, entry, "is no object");
	rc = read_dtype(r, entry, t) ?:
	     read_shape(r, entry, t) ?:
	     read_offsets(r, entry, t);
	if (rc)
		return rc;
	t->name = arena_strdup(&r->s->arena, entry->string);
	return t->name ? 0 : errmsg_nomem(r->err, r->src->name);
}

static int check_metadata(const struct reader *r, const cJSON *entry)
{
	const cJSON *item;

	if (!cJSON_IsObject(entry))
		return errmsg_set(r->err, -EBADMSG,
				  "%s: __metadata__ is not an object", r->src->name);
	cJSON_ArrayForEach(item, entry)
	{
		if (!cJSON_IsString(item))
			return errmsg_set(r->err, -EBADMSG,
					  "%s: __metadata__: %.200s is not a string",
					  r->src->name, item->string);
	}
	item = cJSON_GetObjectItemCaseSensitive(entry, "DCP_SHARDING_INFO");
	r->s->sharding = item ? arena_strdup(&r->s->arena, item->valuestring) : NULL;
	return !item || r->s->sharding ? 0 : errmsg_nomem(r->err, r->src->name);
}

/* Tensors without elements may lie anywhere between others. */
static int by_place(const void *a, const void *b)
{
	const struct stored *x = a, *y = b;

	return ORDER(x->storage, y->storage) ?: ORDER(size_of(x), size_of(y)) ?:
	       strcmp(x->name, y->name);
}

/* Sort the tensors by offset; each must begin where the previous one ends. */
static int check_cover(const struct reader *r)
{
	const struct safetensors *s = r->s;
	uint64_t at = r->data;

	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), by_place);
	for (size_t i = 0; i < s->n; i++) {
		if (s->v[i].storage != at)
			return errmsg_set(r->err, -EBADMSG, "%s: tensor %.200s %s", r->src->name,
					  s->v[i].name,
					  s->v[i].storage < at ? "overlaps another"
							       : "does not follow another");
		at += size_of(&s->v[i]);
	}
	if (at == r->src->size)
		return 0;
	return errmsg_set(r->err, -EBADMSG,
			  "%s: %llu bytes behind the last tensor", r->src->name,
			  (unsigned long long)(r->src->size - at));
}

static int read_header(const struct reader *r, const cJSON *root)
{
	struct safetensors *s = r->s;
	const cJSON *entry;
	int rc = 0;

	if (!cJSON_IsObject(root))
		return errmsg_set(r->err, -EBADMSG, "%s: header is no object",
				  r->src->name);
	s->v = arena_alloc(&s->arena,
			   (size_t)cJSON_GetArraySize(root) * sizeof(*s->v) + 1);
	if (!s->v)
		return errmsg_nomem(r->err, r->src->name);
	cJSON_ArrayForEach(entry, root)
	{
		rc = strcmp(entry->string, "__metadata__") == 0
			     ? check_metadata(r, entry)
			     : read_tensor(r, entry, &s->v[s->n++]);
		if (rc)
			return rc;
	}
	return check_cover(r);
}

/* Check the length and the first byte of the header before it is parsed. */
static int find_header(const struct source *src, uint64_t *len,
		       struct errmsg *err)
{
	uint8_t head[LENGTH_BYTES + 1];
	int rc;

	if (src->size < sizeof(head))
		return errmsg_set(err, -EBADMSG,
				  "%s: %llu bytes are too few for a safetensors file",
				  src->name, (unsigned long long)src->size);
	rc = source_read(src, head, sizeof(head), 0, err);
	if (rc)
		return rc;
	*len = get_le64(head);
	if (*len > src->size - LENGTH_BYTES || head[LENGTH_BYTES] != '{')
		return errmsg_set(err, -EBADMSG,
				  "%s: no safetensors file, or truncated",
				  src->name);
	if (*len > SAFETENSORS_HEADER_MAX)
		return errmsg_set(err, -E2BIG, "%s: header of %llu bytes",
				  src->name, (unsigned long long)*len);
	return 0;
}

int safetensors_read(struct safetensors *s, const struct source *src,
		     struct errmsg *err)
{
	struct reader r = { .s = s, .src = src, .err = err };
	cJSON *root = NULL;
	uint64_t len = 0;
	int rc;

	*s = (struct safetensors){ 0 };
	rc = find_header(src, &len, err) ?:
	     json_read(src, LENGTH_BYTES, (size_t)len, &root, err);
	if (rc)
		return rc;
	r.data = LENGTH_BYTES + len;
	assert(r.data <= src->size);
	rc = read_header(&r, root);
	cJSON_Delete(root);
	if (rc)
		safetensors_done(s);
	return rc;
}

void safetensors_done(struct safetensors *s)
{
	arena_done(&s->arena);
	s->v = NULL;
	s->n = 0;
}

static size_t find_type(enum dtype dtype)
{
	size_t i = 0;

	while (i < COUNT(types) && types[i].dtype != dtype)
		i++;
	return i;
}

static int by_type_and_name(const void *a, const void *b, void *ctx)
{
	const struct stored *v = ctx;
	const struct stored *x = &v[*(const size_t *)a];
	const struct stored *y = &v[*(const size_t *)b];

	return ORDER(find_type(x->dtype), find_type(y->dtype)) ?: strcmp(x->name, y->name);
}

/* Add a tensor's member, and its bytes to `*at`. */
static void add_tensor(const struct stored *t, uint64_t *at, struct bytebuf *out)
{
	const uint64_t end = *at + t->numel * dtype_size(t->dtype);

	bytebuf_add_u8(out, ',');
	json_write_string(out, t->name, false);
	bytebuf_add_format(out, ":{\"dtype\":\"%s\",\"shape\":[",
			   types[find_type(t->dtype)].name);
	for (unsigned i = 0; i < t->ndim; i++)
		bytebuf_add_format(out, "%s%" PRIu64, i ? "," : "",
				   t->shape[i] *
					   (i + 1 == t->ndim ? packed(t->dtype) : 1));
	bytebuf_add_format(out,
			   "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
			   *at, end);
	*at = end;
}

bool safetensors_knows(enum dtype dtype, unsigned ndim)
{
	return dtype != DTYPE_OTHER && find_type(dtype) < COUNT(types) &&
	       (ndim || packed(dtype) == 1);
}

static int check_tensor(const struct stored *t, struct errmsg *err)
{
	if (!safetensors_knows(t->dtype, t->ndim))
		return errmsg_set(err, -ENOTSUP,
				  "%s: safetensors has no type for %s", t->name,
				  dtype_name(t->dtype));
	if (!utf8_is(t->name))
		return errmsg_set(err, -ENOTSUP,
				  "%s: its name is no UTF-8, which safetensors demands", t->name);
	return 0;
}

int safetensors_write_header(const struct stored *v, size_t n, size_t *order, struct bytebuf *out,
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
		qsort_r(order, n, sizeof(*order), by_type_and_name,
			(void *)v);
	bytebuf_add_str(&b, "{\"__metadata__\":{\"format\":\"pt\"}");
	for (size_t i = 0; i < n && b.len <= SAFETENSORS_HEADER_MAX; i++)
		add_tensor(&v[order[i]], &at, &b);
	bytebuf_add_u8(&b, '}');
	bytebuf_add_fill(&b, ' ', -b.len % ALIGNMENT);
	if (b.len > SAFETENSORS_HEADER_MAX)
		rc = errmsg_set(err, -E2BIG, "a safetensors header of more than %u bytes",
				SAFETENSORS_HEADER_MAX);
	bytebuf_add_le64(out, b.len);
	bytebuf_add(out, b.data, b.len);
	if (!rc && (b.failed || out->failed))
		rc = errmsg_nomem(err, NULL);
	bytebuf_done(&b);
	return rc;
}
