/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of torch.save, written by the same writer as the mount's files.  The
 * layout is computed before the first byte; storages are fetched, checksummed
 * and written piece by piece, so that no file is ever in memory as a whole.
 */
#include "gpu/save/ptsave.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptwrite.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/pickle/value.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/sys/output.h"
#include "ckpt/tensor/cast.h"
#include "gpu/backend/backend.h"

#define PIECE_ELEMENTS ((size_t)1 << 18)
#define KEY_MAX 24
#define ALIGN ((size_t)64)

int ptsave_init(struct ptsave *s, struct errmsg *err)
{
	*s = (struct ptsave){ 0 };
	s->spare = value_new(&s->arena, VALUE_NONE);
	return s->spare ? 0 : errmsg_nomem(err, NULL);
}

void ptsave_done(struct ptsave *s)
{
	arena_done(&s->arena);
	free(s->storages);
	*s = (struct ptsave){ 0 };
}

static struct value *have(struct ptsave *s, struct value *v)
{
	if (v)
		return v;
	s->failed = true;
	return s->spare;
}

struct value *ptsave_none(struct ptsave *s)
{
	return have(s, value_new(&s->arena, VALUE_NONE));
}

struct value *ptsave_bool(struct ptsave *s, bool b)
{
	return have(s, value_new_bool(&s->arena, b));
}

struct value *ptsave_int(struct ptsave *s, int64_t i)
{
	return have(s, value_new_int(&s->arena, i));
}

struct value *ptsave_float(struct ptsave *s, double f)
{
	struct value *v = value_new(&s->arena, VALUE_FLOAT);

	if (v)
		v->f = f;
	return have(s, v);
}

struct value *ptsave_str(struct ptsave *s, const char *text)
{
	return have(s, value_new_str(&s->arena, text));
}

struct value *ptsave_global(struct ptsave *s, const char *module,
			    const char *name)
{
	return have(s, value_new_global(&s->arena, module, name));
}

struct value *ptsave_tuple(struct ptsave *s)
{
	return have(s, value_new(&s->arena, VALUE_TUPLE));
}

struct value *ptsave_list(struct ptsave *s)
{
	return have(s, value_new(&s->arena, VALUE_LIST));
}

struct value *ptsave_dict(struct ptsave *s)
{
	return have(s, value_new(&s->arena, VALUE_DICT));
}

struct value *ptsave_apply(struct ptsave *s, const char *module,
			   const char *name, struct value *args,
			   struct value *state)
{
	struct value *v =
		have(s, value_new_reduce(&s->arena,
					 ptsave_global(s, module, name), args));

	if (v->kind == VALUE_REDUCE)
		v->obj->state = state;
	return v;
}

struct value *ptsave_ordered_dict(struct ptsave *s)
{
	return ptsave_apply(s, "collections", "OrderedDict", ptsave_tuple(s),
			    NULL);
}

struct value *ptsave_call(struct ptsave *s, const char *module,
			  const char *name, struct value *arg)
{
	struct value *args = ptsave_tuple(s);

	ptsave_add(s, args, arg);
	return ptsave_apply(s, module, name, args, NULL);
}

struct value *ptsave_size(struct ptsave *s, const uint64_t *shape, unsigned ndim)
{
	struct value *dims = ptsave_tuple(s);

	for (unsigned i = 0; i < ndim; i++)
		ptsave_add(s, dims, ptsave_int(s, (int64_t)shape[i]));
	return ptsave_call(s, "torch", "Size", dims);
}

struct value *ptsave_object(struct ptsave *s, const char *module,
			    const char *name, struct value *state)
{
	struct value *v = ptsave_apply(s, module, name, ptsave_tuple(s), state);

	if (v->kind == VALUE_REDUCE)
		v->kind = VALUE_NEWOBJ;
	return v;
}

void ptsave_add(struct ptsave *s, struct value *seq, struct value *v)
{
	if (seq != s->spare && !value_seq_add(&s->arena, &seq->seq, v))
		s->failed = true;
}

static void ptsave_set_key(struct ptsave *s, struct value *dict,
			   struct value *key, struct value *v)
{
	struct value_dict *pairs;

	if (dict == s->spare)
		return;
	pairs = dict->kind == VALUE_DICT ? &dict->dict : &dict->obj->pairs;
	if (!value_dict_add(&s->arena, pairs, key, v))
		s->failed = true;
}

void ptsave_set(struct ptsave *s, struct value *dict, const char *key,
		struct value *v)
{
	ptsave_set_key(s, dict, ptsave_str(s, key), v);
}

void ptsave_set_index(struct ptsave *s, struct value *dict, int64_t key,
		      struct value *v)
{
	ptsave_set_key(s, dict, ptsave_int(s, key), v);
}

size_t ptsave_storage(struct ptsave *s, const struct ptsave_storage *storage)
{
	if (!array_reserve(&s->storages, &s->cap, s->nstorages + 1,
			   sizeof(*s->storages))) {
		s->failed = true;
		return 0;
	}
	s->storages[s->nstorages] = *storage;
	return s->nstorages++;
}

struct value *ptsave_tensor(struct ptsave *s, size_t storage, uint64_t offset,
			    const uint64_t *shape, unsigned ndim,
			    bool requires_grad)
{
	char key[KEY_MAX];
	struct tensor t;

	if (s->failed)
		return s->spare;
	assert(storage < s->nstorages);
	tensor_init(&t, s->storages[storage].dtype, shape, ndim, requires_grad);
	snprintf(key, sizeof(key), "%zu", storage);
	t.storage_key = arena_strndup(&s->arena, key, strlen(key));
	t.storage_offset = offset;
	t.storage_numel = s->storages[storage].numel;
	return have(s, t.storage_key ? tensor_to_value(&s->arena, &t) : NULL);
}

/* Size of an element in memory. */
static size_t size_of(const struct ptsave_storage *s)
{
	return s->wide ? sizeof(float) : dtype_size(s->dtype);
}

/* Host memory for a storage on the device, padded to the next one. */
static size_t room(const struct ptsave_storage *s)
{
	const size_t n = s->numel * size_of(s);

	return s->from ? (n + ALIGN - 1) / ALIGN * ALIGN : 0;
}

size_t ptsave_device_bytes(const struct ptsave *s)
{
	size_t n = 0;

	for (size_t i = 0; i < s->nstorages; i++)
		n += room(&s->storages[i]);
	return n;
}

void *ptsave_detach(struct ptsave *s, void *to)
{
	uint8_t *at = to;

	for (size_t i = 0; i < s->nstorages; i++) {
		struct ptsave_storage *one = &s->storages[i];
		struct backend *from = one->from;
		const size_t n = room(one);

		if (!from)
			continue;
		from->ops->copy(from, QUEUE_COPY, at, one->p,
				one->numel * size_of(one));
		one->p = at;
		one->from = NULL;
		at += n;
	}
	return at;
}

struct file {
	struct ptsave *s;
	const char *path;
	int fd;
	struct ptwrite layout;
	const struct ptsave_storage **storages; /* in file order */
	uint64_t *len;
	uint32_t *crc;
	uint8_t *piece, *wide; /* of PIECE_ELEMENTS each */
	struct errmsg *err;
};

static int ptsave_fail(const struct file *f, const char *what)
{
	return errmsg_set(f->err, -errno, "%s: %s: %s", f->path, what,
			  strerror(errno));
}

static int ptsave_put(const struct file *f, const void *p, size_t n)
{
	return write_all(f->fd, p, n) < 0 ? ptsave_fail(f, "cannot write") : 0;
}

/* Get elements [at, at + n) of a storage in the file's type. */
static const void *fetch(const struct file *f, const struct ptsave_storage *s,
			 uint64_t at, size_t n)
{
	const size_t size = size_of(s);
	const uint8_t *p = (const uint8_t *)s->p + at * size;

	assert(at + n <= s->numel && n <= PIECE_ELEMENTS);
	if (s->from) {
		void *to = s->wide ? f->wide : f->piece;

		s->from->ops->to_host(s->from, to, p, n * size);
		p = to;
	}
	if (s->wide) {
		cast_from_float(s->dtype, (const float *)p, f->piece, n);
		p = f->piece;
	}
	return p;
}

static int put_storage(const struct file *f, size_t i)
{
	const struct ptsave_storage *s = f->storages[i];
	const size_t size = dtype_size(s->dtype);
	int rc = 0;

	for (uint64_t at = 0; at < s->numel && !rc; at += PIECE_ELEMENTS) {
		const uint64_t left = s->numel - at;
		const size_t n = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS;
		const void *p = fetch(f, s, at, n);

		f->crc[i] = crc32_add(f->crc[i], p, n * size);
		rc = ptsave_put(f, p, n * size);
	}
	return rc;
}

static int put_literal(const struct file *f, size_t i)
{
	struct bytebuf b = { 0 };
	int rc = ptwrite_literal(&f->layout, i, f->crc, &b, f->err);

	if (!rc)
		rc = ptsave_put(f, b.data, b.len);
	bytebuf_done(&b);
	return rc;
}

static int put_all(const struct file *f)
{
	int rc = put_literal(f, 0);

	for (size_t i = 0; i < f->layout.n && !rc; i++) {
		rc = put_storage(f, i);
		if (!rc)
			rc = put_literal(f, i + 1);
	}
	if (!rc && fsync(f->fd) < 0)
		rc = ptsave_fail(f, "cannot write");
	return rc;
}

static int ptsave_create(struct file *f)
{
	int rc;

	f->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (f->fd < 0)
		return ptsave_fail(f, "cannot create");
	rc = put_all(f);
	if (close(f->fd) < 0 && !rc)
		rc = ptsave_fail(f, "cannot write");
	if (rc)
		unlink(f->path);
	return rc;
}

/* Order storages as the pickle first refers to them. */
static int order_storages(struct file *f, const struct pickle_storages *met)
{
	f->storages = calloc(met->n + 1, sizeof(const void *));
	f->len = calloc(met->n + 1, sizeof(*f->len));
	f->crc = calloc(met->n + 1, sizeof(*f->crc));
	f->piece = malloc(PIECE_ELEMENTS * sizeof(double));
	f->wide = malloc(PIECE_ELEMENTS * sizeof(float));
	if (!f->storages || !f->len || !f->crc || !f->piece || !f->wide)
		return -ENOMEM;
	for (size_t i = 0; i < met->n; i++) {
		const char *key = met->pid[i]->pid->seq.v[2]->str.p;

		f->storages[i] = &f->s->storages[strtoul(key, NULL, 10)];
		f->len[i] = f->storages[i]->numel *
			    dtype_size(f->storages[i]->dtype);
	}
	return 0;
}

static char *stem(const char *path)
{
	const char *name = strrchr(path, '/');
	const char *dot;

	name = name ? name + 1 : path;
	dot = strrchr(name, '.');
	return dot ? strndup(name, (size_t)(dot - name)) : strdup(name);
}

static int ptsave_lay_out(struct file *f, const char *prefix,
			  const struct value *root)
{
	struct pickle_storages met = { 0 };
	struct bytebuf pickle = { 0 };
	int rc = pickle_dump(root, &pickle, &met, f->err);

	if (!rc && order_storages(f, &met))
		rc = errmsg_nomem(f->err, NULL);
	if (!rc)
		rc = ptwrite_init(&f->layout, prefix, &pickle, f->len, met.n,
				  f->err);
	if (rc)
		bytebuf_done(&pickle);
	pickle_storages_done(&met);
	return rc;
}

int ptsave_write(struct ptsave *s, const struct value *root, const char *path,
		 struct errmsg *err)
{
	struct file f = { .s = s, .path = path, .err = err };
	char *prefix = s->failed ? NULL : stem(path);
	int rc;

	if (!prefix)
		return errmsg_nomem(err, path);
	rc = ptsave_lay_out(&f, prefix, root);
	if (!rc)
		rc = ptsave_create(&f);
	ptwrite_done(&f.layout);
	free(prefix);
	free(f.storages);
	free(f.len);
	free(f.crc);
	free(f.piece);
	free(f.wide);
	return rc;
}
