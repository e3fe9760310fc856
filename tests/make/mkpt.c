/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint files for tests, made with the library's own writer. test_good and
 * test_ptwrite show that it writes what torch writes; here it makes files that
 * differ from good ones in one place.
 */
#include "tests/make/mkpt.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/ptwrite.h"

static void die(const char *what)
{
	perror(what);
	abort();
}

static void *must(void *p)
{
	if (!p)
		die("out of memory");
	return p;
}

void mkpt_done(struct mkpt *m)
{
	for (size_t i = 0; i < m->nstorages; i++)
		free(m->storages[i].bytes);
	free(m->storages);
	arena_done(&m->arena);
	*m = (struct mkpt){ 0 };
}

struct value *mkpt_none(struct mkpt *m)
{
	return must(value_new(&m->arena, VALUE_NONE));
}

struct value *mkpt_int(struct mkpt *m, int64_t i)
{
	return must(value_new_int(&m->arena, i));
}

struct value *mkpt_bool(struct mkpt *m, bool b)
{
	return must(value_new_bool(&m->arena, b));
}

struct value *mkpt_float(struct mkpt *m, double f)
{
	struct value *v = must(value_new(&m->arena, VALUE_FLOAT));

	v->f = f;
	return v;
}

struct value *mkpt_str(struct mkpt *m, const char *s)
{
	return must(value_new_str(&m->arena, s));
}

struct value *mkpt_global(struct mkpt *m, const char *module, const char *name)
{
	return must(value_new_global(&m->arena, module, name));
}

struct value *mkpt_dict(struct mkpt *m)
{
	return must(value_new(&m->arena, VALUE_DICT));
}

struct value *mkpt_list(struct mkpt *m)
{
	return must(value_new(&m->arena, VALUE_LIST));
}

struct value *mkpt_tuple(struct mkpt *m, size_t n, ...)
{
	struct value *t = must(value_new(&m->arena, VALUE_TUPLE));
	va_list ap;

	va_start(ap, n);
	while (n-- > 0)
		mkpt_add(m, t, va_arg(ap, struct value *));
	va_end(ap);
	return t;
}

struct value *mkpt_attribute(struct mkpt *m, struct value *tensor, const char *name, struct value *v)
{
	struct value *state = mkpt_dict(m);

	mkpt_set(m, state, name, v);
	return mkpt_reduce(m, mkpt_global(m, "torch._tensor", "_rebuild_from_type_v2"),
			   mkpt_tuple(m, 4, tensor->obj->callable,
				      mkpt_global(m, "torch", "Tensor"), tensor->obj->args, state));
}

struct value *mkpt_reduce(struct mkpt *m, struct value *callable, struct value *args)
{
	return must(value_new_reduce(&m->arena, callable, args));
}

struct value *mkpt_object(struct mkpt *m, const char *module, const char *name, struct value *state)
{
	struct value *v = mkpt_reduce(m, mkpt_global(m, module, name), mkpt_tuple(m, 0));

	v->kind = VALUE_NEWOBJ;
	v->obj->state = state;
	return v;
}

struct value *mkpt_ordered_dict(struct mkpt *m)
{
	return mkpt_reduce(m, mkpt_global(m, "collections", "OrderedDict"), mkpt_tuple(m, 0));
}

struct value *mkpt_size(struct mkpt *m, const uint64_t *shape, unsigned ndim)
{
	struct value *dims = mkpt_tuple(m, 0);

	for (unsigned i = 0; i < ndim; i++)
		mkpt_add(m, dims, mkpt_int(m, (int64_t)shape[i]));
	return mkpt_reduce(m, mkpt_global(m, "torch", "Size"), mkpt_tuple(m, 1, dims));
}

void mkpt_add(struct mkpt *m, struct value *seq, struct value *v)
{
	if (!value_append(&m->arena, seq, v))
		die("out of memory");
}

static bool same_key(const struct value *a, const struct value *b)
{
	if (a->kind != b->kind)
		return false;
	return a->kind == VALUE_INT
		       ? a->i == b->i
		       : a->str.len == b->str.len && !memcmp(a->str.p, b->str.p, a->str.len);
}

static struct value_dict *pairs_of(struct value *dict)
{
	return dict->kind == VALUE_DICT ? &dict->dict : &dict->obj->pairs;
}

static void append(struct mkpt *m, struct value *dict, struct value *key, struct value *v)
{
	if (!value_put(&m->arena, dict, key, v))
		die("out of memory");
}

void mkpt_set_key(struct mkpt *m, struct value *dict, struct value *key, struct value *v)
{
	struct value_dict *d = pairs_of(dict);

	for (size_t i = 0; i < d->n; i++) {
		if (!same_key(d->v[i].key, key))
			continue;
		d->v[i].val = v;
		if (!v)
			memmove(&d->v[i], &d->v[i + 1], (--d->n - i) * sizeof(*d->v));
		return;
	}
	if (v)
		append(m, dict, key, v);
}

void mkpt_set_new(struct mkpt *m, struct value *dict, const char *key, struct value *v)
{
	append(m, dict, mkpt_str(m, key), v);
}

void mkpt_set(struct mkpt *m, struct value *dict, const char *key, struct value *v)
{
	mkpt_set_key(m, dict, mkpt_str(m, key), v);
}

const char *mkpt_add_storage(struct mkpt *m, const void *bytes, uint64_t len)
{
	char key[24];

	m->storages = must(realloc(m->storages, (m->nstorages + 1) * sizeof(*m->storages)));
	m->storages[m->nstorages] =
		(struct mkpt_storage){ .bytes = must(malloc(len + 1)), .len = len };
	if (len)
		memcpy(m->storages[m->nstorages].bytes, bytes, len);
	snprintf(key, sizeof(key), "%zu", m->nstorages++);
	return must(arena_strndup(&m->arena, key, strlen(key)));
}

struct value *mkpt_tensor(struct mkpt *m, enum dtype dtype, const uint64_t *shape, unsigned ndim,
			  const void *bytes)
{
	struct tensor t;

	tensor_init(&t, dtype, shape, ndim, false);
	t.storage_key = mkpt_add_storage(m, bytes, t.numel * dtype_size(dtype));
	return must(tensor_to_value(&m->arena, &t));
}

struct value *mkpt_flat(struct mkpt *m, enum dtype dtype, uint64_t numel, uint64_t capacity,
			bool requires_grad, const void *bytes)
{
	struct tensor t;

	tensor_init(&t, dtype, &numel, 1, requires_grad);
	t.storage_numel = capacity;
	t.storage_key = mkpt_add_storage(m, bytes, capacity * dtype_size(dtype));
	return must(tensor_to_value(&m->arena, &t));
}

/* Lay `pickle` and the storages numbered `order[n]` out as a file. */
static void emit(const struct mkpt *m, const size_t *order, size_t n, struct bytebuf *pickle,
		 const char *prefix, struct bytebuf *out)
{
	uint64_t *len = must(calloc(n + 1, sizeof(*len)));
	uint32_t *crc = must(calloc(n + 1, sizeof(*crc)));
	struct errmsg err = { "" };
	struct ptwrite w;

	for (size_t i = 0; i < n; i++) {
		const struct mkpt_storage *s = &m->storages[order[i]];

		len[i] = s->len;
		crc[i] = crc32_add(0, s->bytes, s->len);
	}
	if (ptwrite_init(&w, prefix, pickle, len, n, &err))
		die(err.text);
	for (size_t i = 0; i <= n; i++) {
		if (ptwrite_literal(&w, i, crc, out, &err))
			die(err.text);
		if (i < n)
			bytebuf_add(out, m->storages[order[i]].bytes, len[i]);
	}
	ptwrite_done(&w);
	free(len);
	free(crc);
}

void mkpt_emit(const struct mkpt *m, const struct value *root, const char *prefix,
	       struct bytebuf *out)
{
	struct pickle_storages met = { 0 };
	struct bytebuf pickle = { 0 };
	struct errmsg err = { "" };
	size_t *order;

	if (pickle_dump(root, &pickle, &met, &err))
		die(err.text);
	order = must(calloc(met.n + 1, sizeof(*order)));
	for (size_t i = 0; i < met.n; i++)
		order[i] = strtoul(met.pid[i]->pid->seq.v[2]->str.p, NULL, 10);
	emit(m, order, met.n, &pickle, prefix, out);
	free(order);
	pickle_storages_done(&met);
}

void mkpt_emit_pickle(const struct mkpt *m, struct span pickle, const char *prefix,
		      struct bytebuf *out)
{
	const size_t n = m ? m->nstorages : 0;
	size_t *order = must(calloc(n + 1, sizeof(*order)));
	struct bytebuf copy = { 0 };

	for (size_t i = 0; i < n; i++)
		order[i] = i;
	bytebuf_add(&copy, pickle.p, pickle.len);
	emit(m, order, n, &copy, prefix, out);
	free(order);
}

void mkpt_save(const char *path, const void *bytes, size_t len)
{
	FILE *f = fopen(path, "w");

	if (!f || (len && fwrite(bytes, 1, len, f) != len) || fclose(f))
		die(path);
}

struct bytebuf mkpt_load(const char *path)
{
	struct bytebuf b = { 0 };
	FILE *f = fopen(path, "r");
	uint8_t piece[65536];
	size_t n;

	if (!f)
		die(path);
	while ((n = fread(piece, 1, sizeof(piece), f)))
		bytebuf_add(&b, piece, n);
	if (ferror(f) || b.failed)
		die(path);
	fclose(f);
	return b;
}
