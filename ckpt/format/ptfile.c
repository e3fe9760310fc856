/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.save's container as torch.load sees it.  torch/serialization.py decides by
 * the first four bytes whether it is a zip file; then it unpickles
 * <prefix>/data.pkl and finds each storage in <prefix>/data/<key>.  It reads any
 * other file as a chain of pickles (legacy.c).
 */
#include "ckpt/format/ptfile.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/value.h"

#define BYTEORDER_MAX 16

/* Bytes at both ends of a file that are read at once: they hold the directory and most pickles.
 * A large file reads more, which costs little compared with the rest. */
#define ENDS_LEN (16u << 10)
#define ENDS_LEN_LARGE (64u << 10)
#define LARGE (UINT64_C(64) << 20)

/* As source_read. */
static int read_ends(const struct source *s, void *buf, size_t len, uint64_t off,
		     struct errmsg *err)
{
	const struct ptfile *pt = s->ctx;

	if (off + len <= pt->head_end)
		memcpy(buf, pt->head + off, len);
	else if (off >= pt->tail_begin)
		memcpy(buf, pt->tail + (off - pt->tail_begin), len);
	else
		return source_read(&pt->src, buf, len, off, err);
	return 0;
}

/* Read the bytes before `to` into memory, with one more read. */
static int read_head(struct ptfile *pt, uint64_t to, struct errmsg *err)
{
	const uint64_t has = pt->head_end;
	uint8_t *grown = to > has ? realloc(pt->head, (size_t)to) : NULL;
	int rc;

	if (to <= has)
		return 0;
	if (!grown)
		return errmsg_nomem(err, pt->src.name);
	pt->head = grown;
	rc = source_read(&pt->src, grown + has, (size_t)(to - has), has, err);
	if (!rc)
		pt->head_end = to;
	return rc;
}

static int open_ends(struct ptfile *pt, struct errmsg *err)
{
	static const struct source_ops ops = { .read = read_ends };
	const uint64_t size = pt->src.size;
	const size_t len = size < LARGE ? ENDS_LEN : ENDS_LEN_LARGE;

	pt->ends = (struct source){ .name = pt->src.name,
				    .size = size,
				    .fd = -1,
				    .ops = &ops,
				    .ctx = pt };
	pt->tail_begin = size;
	if (size <= 2 * len)
		return read_head(pt, size, err);
	pt->tail = malloc(len);
	if (!pt->tail)
		return errmsg_nomem(err, pt->src.name);
	pt->tail_begin = size - len;
	return read_head(pt, len, err) ?:
	       source_read(&pt->src, pt->tail, len, pt->tail_begin, err);
}

static int check_magic(const struct source *src, bool *is_zip,
		       struct errmsg *err)
{
	uint8_t head[4] = { 0 };
	const size_t n = src->size < sizeof(head) ? (size_t)src->size :
						    sizeof(head);
	int rc;

	if (src->size == 0)
		return errmsg_set(err, -EBADMSG, "%s: empty file", src->name);
	rc = source_read(src, head, n, 0, err);
	if (rc)
		return rc;
	*is_zip = memcmp(head, "PK\3\4", 4) == 0;
	if (*is_zip || head[0] == LEGACY_FIRST_BYTE)
		return 0;
	return errmsg_set(err, -EBADMSG, "%s: not a file of torch.save",
			  src->name);
}

/* Read a whole small member. */
static int read_member(const struct ptfile *pt, const struct zip_entry *e,
		       uint8_t *buf, struct errmsg *err)
{
	uint64_t at;
	int rc = zip_locate(&pt->zip, e, &at, err);

	return rc ? rc : source_read(&pt->ends, buf, (size_t)e->size, at, err);
}

static int check_byteorder(const struct ptfile *pt, struct errmsg *err)
{
	const struct zip_entry *e = zip_find(&pt->zip, "byteorder");
	uint8_t text[BYTEORDER_MAX];
	int rc;

	if (!e)
		return 0; /* before torch 2.1; always little-endian */
	if (e->size > sizeof(text))
		return errmsg_set(err, -EBADMSG, "%s: byteorder of %llu bytes",
				  pt->src.name, (unsigned long long)e->size);
	rc = read_member(pt, e, text, err);
	if (rc)
		return rc;
	if (e->size == 6 && memcmp(text, "little", 6) == 0)
		return 0;
	return errmsg_set(err, -ENOTSUP,
			  "%s: written on a big-endian machine", pt->src.name);
}

static int load_root(struct ptfile *pt, struct errmsg *err)
{
	const struct zip_entry *e = zip_find(&pt->zip, "data.pkl");
	uint8_t *buf;
	int rc;

	if (!e)
		return errmsg_set(err, -EBADMSG, "%s: no data.pkl in it",
				  pt->src.name);
	if (e->size > PICKLE_BYTES_MAX)
		return errmsg_set(err, -E2BIG, "%s: data.pkl of %llu bytes",
				  pt->src.name, (unsigned long long)e->size);
	buf = malloc((size_t)e->size + 1);
	if (!buf)
		return errmsg_nomem(err, pt->src.name);
	rc = read_member(pt, e, buf, err);
	if (!rc)
		rc = pickle_load((struct span){ buf, (size_t)e->size },
				 pt->src.name, &pt->arena, &pt->root, err);
	free(buf);
	return rc;
}

/* Read the pickle and its neighbouring records into memory by one read, unless they are there
 * already. */
static int read_pickle(struct ptfile *pt, struct errmsg *err)
{
	const struct zip_entry *pickle = zip_find(&pt->zip, "data.pkl");
	const struct zip_entry *order = zip_find(&pt->zip, "byteorder");
	uint64_t end;

	if (!pickle || pickle->size > PICKLE_BYTES_MAX || pickle->header)
		return 0;
	end = pickle->end;
	if (order && order->end > end && order->end - end < ENDS_LEN)
		end = order->end;
	/* No other record lies between them. */
	return end - pickle->size > ENDS_LEN ? 0 : read_head(pt, end, err);
}

static int open_zip(struct ptfile *pt, struct errmsg *err)
{
	return zip_open(&pt->zip, &pt->ends, err) ?:
	       read_pickle(pt, err) ?:
	       check_byteorder(pt, err) ?:
	       load_root(pt, err);
}

int ptfile_open_source(struct ptfile *pt, const struct source *src,
		       struct errmsg *err)
{
	int rc;

	*pt = (struct ptfile){ .src = *src };
	rc = open_ends(pt, err) ?: check_magic(&pt->ends, &pt->is_zip, err);
	if (!rc)
		rc = pt->is_zip ? open_zip(pt, err)
				: legacy_open(&pt->legacy, &pt->ends, &pt->arena,
					      &pt->root, err);
	assert(rc || pt->root);
	if (rc)
		ptfile_close(pt);
	return rc;
}

void ptfile_close(struct ptfile *pt)
{
	zip_close(&pt->zip);
	legacy_close(&pt->legacy);
	arena_done(&pt->arena);
	free(pt->head);
	free(pt->tail);
	pt->head = pt->tail = NULL;
	source_close(&pt->src);
	pt->root = NULL;
}

static const struct zip_entry *find_member(const struct ptfile *pt,
					   const char *key)
{
	char member[64];
	const int n = snprintf(member, sizeof(member), "data/%s", key);

	return n < (int)sizeof(member) ? zip_find(&pt->zip, member) : NULL;
}

uint32_t ptfile_storage_crc(const struct ptfile *pt, const char *key)
{
	const struct zip_entry *e = pt->is_zip ? find_member(pt, key) : NULL;

	return e ? e->crc : 0;
}

int ptfile_storage(const struct ptfile *pt, const char *key, uint64_t bytes,
		   uint64_t *offset, struct errmsg *err)
{
	const struct zip_entry *e = pt->is_zip ? find_member(pt, key) : NULL;
	const struct legacy_storage *s =
		pt->is_zip ? NULL : legacy_find(&pt->legacy, key);
	const uint64_t has = e ? e->size : s ? s->len : 0;
	const char *dir = pt->is_zip ? "data/" : "";

	if (!e && !s)
		return errmsg_set(err, -EBADMSG, "%s: storage %s%.40s is missing",
				  pt->src.name, dir, key);
	if (has < bytes)
		return errmsg_set(
			err, -EBADMSG, "%s: storage %s%.40s has %llu bytes, its tensors need %llu",
			pt->src.name, dir, key, (unsigned long long)has, (unsigned long long)bytes);
	if (e)
		return zip_place(&pt->zip, e, offset, err);
	*offset = s->off;
	return 0;
}

int ptfile_tensor(const struct ptfile *pt, const struct value *v,
		  const char *name, struct tensor *t, uint64_t *storage,
		  struct errmsg *err)
{
	struct errmsg why = { "" };
	uint64_t bytes;
	int rc;

	rc = tensor_from_value(v, name, t, &why);
	if (rc)
		return errmsg_set(err, rc, "%s: %s", pt->src.name, why.text);
	if (!checked_mul(t->storage_numel, dtype_size(t->dtype), &bytes))
		return errmsg_set(err, -EBADMSG, "%s: %s: storage of %llu elements", pt->src.name,
				  name, (unsigned long long)t->storage_numel);
	return ptfile_storage(pt, t->storage_key, bytes, storage, err);
}

int ptfile_run(const struct ptfile *pt, const struct value *v, const char *name,
	       struct tensor *t, uint64_t *at, struct errmsg *err)
{
	const int rc = ptfile_tensor(pt, v, name, t, at, err);

	if (rc)
		return rc;
	if (t->dtype == DTYPE_OTHER)
		return errmsg_set(err, -ENOTSUP, "%s: %s: unknown element type",
				  pt->src.name, name);
	if (!tensor_is_contiguous(t))
		return errmsg_set(err, -ENOTSUP,
				  "%s: %s: tensor is not contiguous",
				  pt->src.name, name);
	*at += t->storage_offset * dtype_size(t->dtype);
	return 0;
}

int ptfile_number(const struct ptfile *pt, const struct value *v, const char *name,
		  struct arena *a, struct value **out, struct errmsg *err)
{
	uint8_t raw[16];
	struct tensor t;
	uint64_t at;
	double x;
	int rc = ptfile_run(pt, v, name, &t, &at, err);

	if (rc)
		return rc;
	if (t.numel != 1 || !cast_knows(t.dtype))
		return errmsg_set(err, -ENOTSUP, "%s: %s: is no number", pt->src.name,
				  name);
	rc = source_read(&pt->ends, raw, dtype_size(t.dtype), at, err);
	if (rc)
		return rc;
	cast_to_double(t.dtype, raw, &x, 1);
	if (t.dtype == DTYPE_BOOL)
		*out = value_new_bool(a, x != 0);
	else if (t.dtype >= DTYPE_I64 && t.dtype <= DTYPE_U8)
		*out = value_new_int(a, (int64_t)x);
	else
		*out = value_new_float(a, x);
	return *out ? 0 : errmsg_nomem(err, pt->src.name);
}

int ptfile_numbers(const struct ptfile *pt, const char *name, struct arena *a,
		   struct value **v, struct errmsg *err)
{
	const bool is_tensor = tensor_is(*v);
	const struct value_seq *from = is_tensor ? NULL : value_items(*v);
	struct value *to = from ? value_new(a, (*v)->kind) : NULL;
	int rc = 0;

	if (is_tensor)
		return ptfile_number(pt, *v, name, a, v, err);
	for (size_t i = 0; to && !rc && i < from->n; i++) {
		struct value *x = from->v[i];

		if (tensor_is(x))
			rc = ptfile_number(pt, x, name, a, &x, err);
		value_append(a, to, x);
	}
	if (to && !rc)
		*v = to;
	return rc;
}
