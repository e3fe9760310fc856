/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The format of torch.save before 1.6, which it still writes with
 * _use_new_zipfile_serialization=False, as DeepSpeed does with
 * "checkpoint_serialization": false.  torch/serialization.py _legacy_save:
 *
 *     pickle  magic number
 *     pickle  protocol version
 *     pickle  {protocol_version, little_endian, type_sizes}
 *     pickle  the object
 *     pickle  [key of a storage, ...]
 *     for each key: i64 number of elements, then the elements, unaligned
 *
 * No lengths are recorded: the offset of a storage is the sum of the storages before
 * it.  The size of an element follows from the persistent ids in the object:
 *
 *     ('storage', type, key, location, numel, view)
 *
 * `view` is None: torch since 1.1, which is older than DeepSpeed, has no views of storages.
 */
#include "ckpt/format/legacy.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/value.h"

#define PROTOCOL_VERSION 1001

/* Bytes that hold all pickles of a file with one tensor. */
#define READ_FIRST (16u << 10)

#define COUNT_LEN 8 /* bytes of the number before a storage */

/* 0x1950a86a20f9469cfc6c, too long for an int64_t. */
static const uint8_t magic_number[] = { 0x6c, 0xfc, 0x9c, 0x46, 0xf9,
					0x20, 0x6a, 0xa8, 0x50, 0x19 };

/* Read the next pickle, of at most `max` bytes, into `a`. */
static int read_pickle(struct pickle_bytes *in, const char *what, size_t max,
		       struct arena *a, struct pickle_part *out, struct errmsg *err)
{
	const struct source *src = in->src;
	const size_t all = src->size < LEGACY_PICKLES_MAX ? (size_t)src->size :
							    LEGACY_PICKLES_MAX;
	int rc;

	in->end = max < all - in->pos ? in->pos + max : all;
	*out = (struct pickle_part){ .file = src->name, .part = what };
	rc = pickle_load_part(in, a, out, err);
	if (rc == -ENODATA && in->end == LEGACY_PICKLES_MAX && src->size > in->end)
		return errmsg_set(err, -E2BIG, "%s: pickles of more than %u bytes",
				  src->name, LEGACY_PICKLES_MAX);
	return rc == -ENODATA ? -EBADMSG : rc;
}

static int check_magic(const struct source *src, const struct value *v,
		       struct errmsg *err)
{
	if (v->kind == VALUE_BIGINT && v->str.len == sizeof(magic_number) &&
	    memcmp(v->str.p, magic_number, sizeof(magic_number)) == 0)
		return 0;
	return errmsg_set(err, -EBADMSG,
			  "%s: not a file of torch.save: a pickle without its magic number",
			  src->name);
}

static int check_protocol(const struct source *src, const struct value *v,
			  struct errmsg *err)
{
	int64_t version;

	if (!value_get_int(v, &version))
		return errmsg_set(err, -EBADMSG, "%s: no protocol version after the magic number",
				  src->name);
	if (version == PROTOCOL_VERSION)
		return 0;
	return errmsg_set(err, -ENOTSUP,
			  "%s: protocol version %" PRId64 ", %d is known",
			  src->name, version, PROTOCOL_VERSION);
}

static int check_sys_info(const struct source *src, const struct value *v,
			  struct errmsg *err)
{
	const struct value *little = value_find(v, "little_endian");

	if (!little || little->kind != VALUE_BOOL)
		return errmsg_set(err, -EBADMSG,
				  "%s: does not say in which byte order it is",
				  src->name);
	if (!little->b)
		return errmsg_set(err, -ENOTSUP,
				  "%s: written on a big-endian machine",
				  src->name);
	return check_protocol(src, value_find(v, "protocol_version"), err);
}

static int read_header(struct pickle_bytes *in, struct errmsg *err)
{
	static const struct {
		const char *what;
		int (*check)(const struct source *src, const struct value *v,
			     struct errmsg *err);
	} header[] = {
		{ "magic number", check_magic },
		{ "protocol version", check_protocol },
		{ "sys_info", check_sys_info },
	};

	for (size_t i = 0; i < COUNT(header); i++) {
		struct arena a = { 0 };
		struct pickle_part part;
		const int rc = read_pickle(in, header[i].what, LEGACY_HEADER_MAX,
					   &a, &part, err) ?:
			       header[i].check(in->src, part.root, err);

		arena_done(&a);
		if (rc)
			return rc;
	}
	return 0;
}

struct legacy_storage *legacy_find(const struct legacy *l, const char *key)
{
	return array_find(l->v, l->n, sizeof(*l->v), key);
}

/* Read the last pickle: `*keys` has the keys of storages in the file's order. */
static int read_keys(struct legacy *l, struct pickle_bytes *in,
		     const struct value_seq **keys, struct errmsg *err)
{
	const char *file = in->src->name;
	const struct value_seq *list;
	struct pickle_part part;
	const int rc = read_pickle(in, "storage keys", LEGACY_PICKLES_MAX,
				   &l->arena, &part, err);

	if (rc)
		return rc;
	if (part.root->kind != VALUE_LIST)
		return errmsg_set(err, -EBADMSG,
				  "%s: storage keys are a %s, not a list", file,
				  value_kind_name(part.root));
	list = &part.root->seq;
	if (list->n > LEGACY_STORAGES_MAX)
		return errmsg_set(err, -E2BIG, "%s: %zu storages, at most %u are read", file,
				  list->n, LEGACY_STORAGES_MAX);
	l->v = arena_alloc(&l->arena, list->n * sizeof(*l->v));
	if (!l->v)
		return errmsg_nomem(err, file);
	for (; l->n < list->n; l->n++) {
		const struct value *key = list->v[l->n];

		if (!value_is_cstr(key))
			return errmsg_set(err, -EBADMSG, "%s: storage key %zu is not a string",
					  file, l->n);
		l->v[l->n].key = key->str.p;
	}
	qsort(l->v, l->n, sizeof(*l->v), array_by_text);
	for (size_t i = 1; i < l->n; i++)
		if (strcmp(l->v[i - 1].key, l->v[i].key) == 0)
			return errmsg_set(err, -EBADMSG, "%s: storage %.40s is there twice", file,
					  l->v[i].key);
	*keys = list;
	return 0;
}

/* Set or check the length of a storage by an id that refers to it.  The file counts elements of
 * the type in the first such id. */
static int set_length(const char *file, struct legacy_storage *s,
		      enum dtype dtype, uint64_t numel, struct errmsg *err)
{
	uint64_t len;

	if (!checked_mul(numel, dtype_size(dtype), &len))
		return errmsg_set(err, -EBADMSG,
				  "%s: storage %.40s of %" PRIu64 " elements",
				  file, s->key, numel);
	if (s->elem && s->len != len)
		return errmsg_set(err, -EBADMSG,
				  "%s: storage %.40s has %" PRIu64 " bytes and %" PRIu64, file,
				  s->key, s->len, len);
	if (!s->elem)
		s->elem = dtype_size(dtype);
	s->len = len;
	return 0;
}

/* Read one id and cut it to the five fields that zip files have.  Ids may share their
 * tuple. */
static int take_id(const struct legacy *l, const char *file,
		   struct value *node, struct errmsg *err)
{
	struct value_seq *id = &node->pid->seq;
	struct legacy_storage *s;
	enum dtype dtype;
	const char *key;
	uint64_t numel;
	int rc;

	if (id->n == 5)
		return 0;
	rc = tensor_storage(node, file, &dtype, &key, &numel, err);
	if (rc)
		return rc;
	if (id->v[5]->kind != VALUE_NONE)
		return errmsg_set(err, -ENOTSUP,
				  "%s: a view of storage %.40s, as torch before 1.1 wrote it", file,
				  key);
	s = legacy_find(l, key);
	if (!s)
		return errmsg_set(err, -EBADMSG, "%s: storage %.40s is missing",
				  file, key);
	id->n = 5;
	return set_length(file, s, dtype, numel, err);
}

static int take_ids(const struct legacy *l, const char *file,
		    const struct value_seq *nodes, struct errmsg *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < nodes->n; i++)
		rc = take_id(l, file, nodes->v[i], err);
	return rc;
}

/* Set the offsets of the storages with these keys, which must fill the file from `pos`
 * to its end. */
static int locate(const struct legacy *l, const struct source *src,
		  uint64_t pos, const struct value_seq *keys, struct errmsg *err)
{
	for (size_t i = 0; i < keys->n; i++) {
		struct legacy_storage *s = legacy_find(l, keys->v[i]->str.p);
		uint8_t count[COUNT_LEN];
		uint64_t len;
		int rc;

		if (!s->elem)
			return errmsg_set(err, -EBADMSG, "%s: storage %.40s is not referenced",
					  src->name, s->key);
		rc = source_read(src, count, COUNT_LEN, pos, err);
		if (rc)
			return rc;
		if (!checked_mul(get_le64(count), s->elem, &len) ||
		    len != s->len)
			return errmsg_set(err, -EBADMSG,
					  "%s: storage %.40s: %" PRIu64
					  " elements of %zu bytes, its tensors need %" PRIu64 " bytes",
					  src->name, s->key, get_le64(count), s->elem, s->len);
		s->off = pos + COUNT_LEN;
		if (!checked_range(s->off, len, src->size))
			return errmsg_set(err, -EBADMSG,
					  "%s: ends inside storage %.40s, which has %" PRIu64
					  " bytes at %" PRIu64,
					  src->name, s->key, len, s->off);
		pos = s->off + len;
	}
	if (pos != src->size)
		return errmsg_set(err, -EBADMSG, "%s: %" PRIu64 " bytes after the last storage",
				  src->name, src->size - pos);
	return 0;
}

static int read_chain(struct legacy *l, struct pickle_bytes *in, struct arena *a,
		      struct value **root, struct errmsg *err)
{
	const struct value_seq *keys = NULL;
	struct pickle_part object;
	int rc = read_header(in, err) ?:
		 read_pickle(in, "object", LEGACY_PICKLES_MAX, a, &object, err) ?:
		 read_keys(l, in, &keys, err) ?:
		 take_ids(l, in->src->name, &object.storages.seq, err) ?:
		 locate(l, in->src, in->pos, keys, err);

	if (!rc)
		*root = object.root;
	return rc;
}

int legacy_open(struct legacy *l, const struct source *src, struct arena *a,
		struct value **root, struct errmsg *err)
{
	struct pickle_bytes in = { .src = src, .first = READ_FIRST };
	int rc;

	*l = (struct legacy){ 0 };
	rc = read_chain(l, &in, a, root, err);
	free(in.p);
	if (rc)
		legacy_close(l);
	return rc;
}

void legacy_close(struct legacy *l)
{
	arena_done(&l->arena);
	*l = (struct legacy){ 0 };
}

/* Append `bytes`, a string literal. */
#define ADD(out, bytes) bytebuf_add(out, bytes, sizeof(bytes) - 1)

static void add_header(struct bytebuf *out)
{
	ADD(out, "\x80\x02\x8a\x0a");
	bytebuf_add(out, magic_number, sizeof(magic_number));
	ADD(out, ".");
	pickle_add_int(out, PROTOCOL_VERSION);
	ADD(out, ".}(");
	pickle_add_text(out, "protocol_version", 16);
	pickle_add_int(out, PROTOCOL_VERSION);
	pickle_add_text(out, "little_endian", 13);
	ADD(out, "\x88u.");
}

static void add_dims(struct bytebuf *out, const uint64_t *v, unsigned n)
{
	ADD(out, "(");
	for (unsigned i = 0; i < n; i++)
		pickle_add_int(out, (int64_t)v[i]);
	ADD(out, "t");
}

void legacy_add_tensor(struct bytebuf *out, enum dtype dtype, const uint64_t *shape,
		       unsigned ndim)
{
	const char *typed = dtype_storage(dtype);
	struct tensor t;
	uint64_t n;

	tensor_init(&t, dtype, shape, ndim, false);
	n = typed ? t.numel : t.numel * dtype_size(dtype);
	add_header(out);
	bytebuf_add_format(out, "ctorch._utils\n_rebuild_tensor%s\n((",
			   typed ? "" : "_v3");
	pickle_add_text(out, "storage", 7);
	/* In these files torch.load requires a typed storage. */
	bytebuf_add_format(out, "ctorch\n%s\n", typed ?: dtype_storage(DTYPE_U8));
	pickle_add_text(out, "0", 1);
	pickle_add_text(out, "cpu", 3);
	pickle_add_int(out, (int64_t)n);
	ADD(out, "NtQK\0");
	add_dims(out, t.shape, ndim);
	add_dims(out, t.stride, ndim);
	if (!typed) /* requires_grad, hooks, dtype */
		bytebuf_add_format(out, "\x89Nctorch\n%s\n", dtype_name(dtype));
	ADD(out, "tR.]");
	pickle_add_text(out, "0", 1);
	ADD(out, "a.");
	bytebuf_add_le64(out, n);
}

int legacy_add_object(struct bytebuf *out, const struct value *v, struct errmsg *err)
{
	int rc;

	add_header(out);
	rc = pickle_dump(v, out, NULL, err);
	ADD(out, "].");
	return rc;
}
