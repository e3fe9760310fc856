/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pickling as CPython's C pickler does it (Modules/_pickle.c, protocol 2),
 * down to the bytes: the same opcode for each value, a memo entry after each
 * object that could be shared, batches of 1000.  So a file that we re-emit
 * equals the one that torch.save would have written for the same objects.
 *
 * What Python decides by object identity is decided here by node identity,
 * with these additions, each because the interpreter keeps one object for
 * all equal ones:
 *   - classes: one per (module, name);
 *   - strings that were attribute names (keys of a BUILD state) or constants
 *     of torch's own code: interned;
 *   - strings of one character: cached by CPython;
 *   - storage keys: one per storage (torch/serialization.py, id_map).
 */
#include "ckpt/format/pickle.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/value.h"

#define BATCH 1000 /* _pickle.c BATCHSIZE */

/* The reader bounds nesting as it builds; a graph that was tied together
 * through its memo may go deeper than the reader saw. */
#define DUMP_DEPTH_MAX (4 * PICKLE_DEPTH_MAX)

/* An object that Python has only once for all equal values, identified by its value. */
struct interned {
	enum { A_STRING, A_CLASS, A_KEY /* of a storage */ } kind;
	const char *module; /* of a class */
	const char *text;   /* its name, or the string */
	size_t len;         /* of the text */
	size_t number;      /* number of a key's storage */
	bool written;
	uint32_t index; /* in the memo, if written */
};

/* An error stops the writing: `rc` is set and nothing is saved afterwards, so pickle_dump checks
 * once, at its end. */
struct writer {
	struct bytebuf *out;
	struct pickle_storages *storages;
	struct errmsg *err;
	int rc;
	struct hashtab objects; /* maps addresses of written objects to memo indices */
	struct hashtab names;   /* maps hashes to indices into `interned` */
	struct interned *interned;
	size_t ninterned, cap;
	uint32_t next; /* next memo index */
	unsigned depth;
};

static void pickle_write_save(struct writer *w, const struct value *v);

static void pickle_write_nomem(struct writer *w)
{
	w->rc = errmsg_nomem(w->err, NULL);
}

/* Write an opcode with its operand, in the short form if the number is small. */
static void emit_index(struct writer *w, uint8_t small, uint8_t large,
		       uint32_t index)
{
	bytebuf_add_u8(w->out, index < 256 ? small : large);
	if (index < 256)
		bytebuf_add_u8(w->out, (uint8_t)index);
	else
		bytebuf_add_le32(w->out, index);
}

static void emit_put(struct writer *w)
{
	emit_index(w, 'q', 'r', w->next++);
}

static void emit_get(struct writer *w, uint32_t index)
{
	emit_index(w, 'h', 'j', index);
}

/* Different addresses have different hashes, so the first match is right. */
static uint64_t hash_object(const void *object)
{
	return hash_number((uint64_t)(uintptr_t)object);
}

static bool find_object(const struct writer *w, const void *object,
			uint32_t *index)
{
	size_t pos = 0;

	return hashtab_next(&w->objects, hash_object(object), &pos, index);
}

static void add_object(struct writer *w, const void *object, uint32_t index)
{
	if (!hashtab_add(&w->objects, hash_object(object), index))
		pickle_write_nomem(w);
}

/* Memoize the object just written. */
static void memoize(struct writer *w, const void *object)
{
	add_object(w, object, w->next);
	emit_put(w);
}

/* Memoize an interned object just written. */
static void memoize_interned(struct writer *w, struct interned *e)
{
	e->written = true;
	e->index = w->next;
	emit_put(w);
}

/* If the object was written before, refer to it. */
static bool refer(struct writer *w, const void *object)
{
	uint32_t index;

	if (!find_object(w, object, &index))
		return false;
	emit_get(w, index);
	return true;
}

static bool is_same(const struct interned *x, const struct interned *y)
{
	return x->kind == y->kind && x->len == y->len &&
	       memcmp(x->text, y->text, x->len) == 0 &&
	       (x->kind != A_CLASS || strcmp(x->module, y->module) == 0);
}

/* Find or add an interned object; the result is valid until the next call.  Strings are
 * borrowed.  NULL after an error. */
static struct interned *find_interned(struct writer *w, struct interned wanted)
{
	const uint64_t hash = hash_bytes((uint64_t)wanted.kind, wanted.text,
					 wanted.len);
	size_t pos = 0;
	uint32_t i;

	while (hashtab_next(&w->names, hash, &pos, &i))
		if (is_same(&w->interned[i], &wanted))
			return &w->interned[i];
	if (!array_reserve(&w->interned, &w->cap, w->ninterned + 1,
			   sizeof(*w->interned)) ||
	    !hashtab_add(&w->names, hash, (uint32_t)w->ninterned)) {
		pickle_write_nomem(w);
		return NULL;
	}
	w->interned[w->ninterned] = wanted;
	return &w->interned[w->ninterned++];
}

/* As find_interned; returns NULL if there is nothing to write: the object was written before and is
 * now referenced, or an error occurred. */
static struct interned *find_unwritten(struct writer *w, struct interned wanted)
{
	struct interned *e = find_interned(w, wanted);

	if (!e || !e->written)
		return e;
	emit_get(w, e->index);
	return NULL;
}

void pickle_add_text(struct bytebuf *out, const char *p, size_t len)
{
	bytebuf_add_u8(out, 'X');
	bytebuf_add_le32(out, (uint32_t)len);
	bytebuf_add(out, p, len);
}

static void save_interned(struct writer *w, const char *p, size_t len)
{
	struct interned *e =
		find_unwritten(w, (struct interned){ .text = p, .len = len });

	if (!e)
		return;
	pickle_add_text(w->out, p, len);
	memoize_interned(w, e);
}

/* Save a string of the graph, which other values may share. */
static void save_interned_value(struct writer *w, const struct value *v)
{
	const struct interned *e;

	if (refer(w, v))
		return;
	save_interned(w, v->str.p, v->str.len);
	e = find_interned(w, (struct interned){ .text = v->str.p,
						.len = v->str.len });
	if (e)
		add_object(w, v, e->index);
}

/* Is it a string that CPython caches?  These are the empty string and those of
 * one character up to U+00FF. */
static bool is_cached(const struct value_str *s)
{
	const uint8_t *p = (const uint8_t *)s->p;

	return s->len == 0 || (s->len == 1 && p[0] < 0x80) ||
	       (s->len == 2 && (p[0] == 0xc2 || p[0] == 0xc3));
}

static void save_str(struct writer *w, const struct value *v)
{
	if (v->str.len > UINT32_MAX) {
		w->rc = errmsg_set(w->err, -E2BIG, "string too long to pickle");
	} else if (is_cached(&v->str)) {
		save_interned(w, v->str.p, v->str.len);
	} else {
		pickle_add_text(w->out, v->str.p, v->str.len);
		memoize(w, v);
	}
}

void pickle_add_int(struct bytebuf *out, int64_t i)
{
	if (i >= 0 && i < 256) {
		bytebuf_add_u8(out, 'K');
		bytebuf_add_u8(out, (uint8_t)i);
	} else if (i >= 0 && i < 65536) {
		bytebuf_add_u8(out, 'M');
		bytebuf_add_le16(out, (uint16_t)i);
	} else if (i >= INT32_MIN && i <= INT32_MAX) {
		bytebuf_add_u8(out, 'J');
		bytebuf_add_le32(out, (uint32_t)i);
	} else {
		unsigned n = 8;

		/* Minimal two's complement. */
		while (n > 1 && (i >> (8 * (n - 1) - 1) == 0 ||
				 i >> (8 * (n - 1) - 1) == -1))
			n--;
		bytebuf_add_u8(out, 0x8a);
		bytebuf_add_u8(out, (uint8_t)n);
		for (unsigned k = 0; k < n; k++)
			bytebuf_add_u8(out, (uint8_t)((uint64_t)i >> 8 * k));
	}
}

static void save_bigint(struct writer *w, const struct value_str *digits)
{
	emit_index(w, 0x8a, 0x8b, (uint32_t)digits->len);
	bytebuf_add(w->out, digits->p, digits->len);
}

static void save_float(struct writer *w, double f)
{
	uint64_t bits;

	memcpy(&bits, &f, sizeof(bits));
	bytebuf_add_u8(w->out, 'G');
	for (int i = 7; i >= 0; i--)
		bytebuf_add_u8(w->out, (uint8_t)(bits >> 8 * i));
}

static void save_global(struct writer *w, const struct value *v)
{
	const char *module = v->global.module, *name = v->global.name;
	struct interned *e =
		find_unwritten(w, (struct interned){ .kind = A_CLASS,
						     .module = module,
						     .text = name,
						     .len = strlen(name) });

	if (!e)
		return;
	bytebuf_add_u8(w->out, 'c');
	bytebuf_add_str(w->out, module);
	bytebuf_add_u8(w->out, '\n');
	bytebuf_add_str(w->out, name);
	bytebuf_add_u8(w->out, '\n');
	memoize_interned(w, e);
}

static void save_pairs(struct writer *w, const struct value_dict *d,
		       size_t from, size_t n, bool attributes)
{
	for (size_t i = from; i < from + n && !w->rc; i++) {
		const struct value *key = d->v[i].key;

		if (attributes && key->kind == VALUE_STR)
			save_interned_value(w, key);
		else
			pickle_write_save(w, key);
		pickle_write_save(w, d->v[i].val);
	}
}

static void save_elements(struct writer *w, const struct value_seq *s,
			  size_t from, size_t n)
{
	for (size_t i = from; i < from + n && !w->rc; i++)
		pickle_write_save(w, s->v[i]);
}

/*
 * CPython has two batching loops: for exact dicts and lists, which it can
 * index, and for iterators, where it must look one item ahead.  They differ
 * only at their ends: a lone last item of an iterator goes without a mark,
 * and an exact dict of a multiple of 1000 items ends with an empty batch.
 */
static void batch_dict(struct writer *w, const struct value_dict *d, bool exact,
		       bool attributes)
{
	size_t at = 0, n;

	if (d->n == 0)
		return;
	do {
		const size_t left = d->n - at;

		n = left < BATCH ? left : BATCH;
		if (!exact && n == 0)
			return;
		if (n == 1 && (!exact || d->n == 1)) {
			save_pairs(w, d, at, 1, attributes);
			bytebuf_add_u8(w->out, 's');
			return;
		}
		bytebuf_add_u8(w->out, '(');
		save_pairs(w, d, at, n, attributes);
		bytebuf_add_u8(w->out, 'u');
		at += n;
	} while (n == BATCH);
}

static void batch_list(struct writer *w, const struct value_seq *s, bool exact)
{
	for (size_t at = 0; at < s->n; at += BATCH) {
		const size_t left = s->n - at;
		const size_t n = left < BATCH ? left : BATCH;
		const bool lone = n == 1 && (!exact || s->n == 1);

		if (!lone)
			bytebuf_add_u8(w->out, '(');
		save_elements(w, s, at, n);
		bytebuf_add_u8(w->out, lone ? 'a' : 'e');
	}
}

static void save_dict(struct writer *w, const struct value *v, bool attributes)
{
	bytebuf_add_u8(w->out, '}');
	memoize(w, v);
	batch_dict(w, &v->dict, true, attributes);
}

static void save_list(struct writer *w, const struct value *v)
{
	bytebuf_add_u8(w->out, ']');
	memoize(w, v);
	batch_list(w, &v->seq, true);
}

static void save_tuple(struct writer *w, const struct value *v)
{
	static const uint8_t ops[] = { ')', 0x85, 0x86, 0x87 };
	const size_t n = v->seq.n;
	uint32_t index;

	if (n == 0) {
		bytebuf_add_u8(w->out, ')');
		return;
	}
	if (n > 3)
		bytebuf_add_u8(w->out, '(');
	save_elements(w, &v->seq, 0, n);
	/* A tuple that contains itself was written with its elements: drop them
	 * and refer to it. */
	if (find_object(w, v, &index)) {
		if (n > 3)
			bytebuf_add_u8(w->out, '1');
		else
			bytebuf_add_fill(w->out, '0', n);
		emit_get(w, index);
		return;
	}
	bytebuf_add_u8(w->out, n > 3 ? 't' : ops[n]);
	memoize(w, v);
}

static void save_object(struct writer *w, const struct value *v)
{
	const struct value_obj *o = v->obj;
	const struct value *state = o->state;
	uint32_t index;

	pickle_write_save(w, o->callable);
	pickle_write_save(w, o->args);
	bytebuf_add_u8(w->out, v->kind == VALUE_REDUCE ? 'R' : 0x81);
	/* An object that contains itself was written with its arguments. */
	if (find_object(w, v, &index)) {
		bytebuf_add_u8(w->out, '0');
		emit_get(w, index);
		return;
	}
	memoize(w, v);
	batch_list(w, &o->items, false);
	batch_dict(w, &o->pairs, false, false);
	if (!state)
		return;
	if (state->kind != VALUE_DICT)
		pickle_write_save(w, state);
	else if (!refer(w, state))
		save_dict(w, state, true);
	bytebuf_add_u8(w->out, 'b');
}

/* Return the key that identifies a storage.  NULL after an error. */
static struct interned *number_storage(struct writer *w, const struct value *v)
{
	struct pickle_storages *s = w->storages;
	const struct value_str *key = &v->pid->seq.v[2]->str;
	struct interned *e =
		find_interned(w, (struct interned){ .kind = A_KEY,
						    .text = key->p,
						    .len = key->len,
						    .number = s->n });

	if (!e || e->number < s->n)
		return e;
	if (!array_reserve(&s->pid, &s->cap, s->n + 1, sizeof(*s->pid))) {
		pickle_write_nomem(w);
		return NULL;
	}
	s->pid[s->n++] = v;
	return e;
}

/* Keys 0 to 9 are strings of one character; longer keys live in torch's table and are the
 * same object at each visit. */
static void save_storage_key(struct writer *w, size_t number, struct interned *e)
{
	static const char digits[] = "0123456789";
	char key[24];

	if (number < 10) {
		save_interned(w, digits + number, 1);
	} else if (e->written) {
		emit_get(w, e->index);
	} else {
		pickle_add_text(w->out, key, (size_t)snprintf(key, sizeof(key), "%zu", number));
		memoize_interned(w, e);
	}
}

static void save_storage(struct writer *w, const struct value *v)
{
	const struct value *location = v->pid->seq.v[3];
	struct interned *e;

	if (!w->storages) {
		w->rc = errmsg_set(w->err, -ENOTSUP, "contains a tensor");
		return;
	}
	bytebuf_add_u8(w->out, '(');
	save_interned(w, "storage", 7);
	save_global(w, v->pid->seq.v[1]);
	e = number_storage(w, v);
	if (!e)
		return;
	save_storage_key(w, e->number, e);
	if (value_is_str(location, "cpu"))
		save_interned_value(w, location);
	else
		save_interned(w, "cpu", 3);
	pickle_add_int(w->out, v->pid->seq.v[4]->i);
	bytebuf_add_u8(w->out, 't');
	emit_put(w); /* the tuple's memo entry; nothing refers to it */
	bytebuf_add_u8(w->out, 'Q');
}

static void save_kind(struct writer *w, const struct value *v)
{
	switch (v->kind) {
	case VALUE_NONE: bytebuf_add_u8(w->out, 'N'); break;
	case VALUE_BOOL: bytebuf_add_u8(w->out, v->b ? 0x88 : 0x89); break;
	case VALUE_INT: pickle_add_int(w->out, v->i); break;
	case VALUE_BIGINT: save_bigint(w, &v->str); break;
	case VALUE_FLOAT: save_float(w, v->f); break;
	case VALUE_STR: save_str(w, v); break;
	case VALUE_TUPLE: save_tuple(w, v); break;
	case VALUE_LIST: save_list(w, v); break;
	case VALUE_DICT: save_dict(w, v, false); break;
	case VALUE_GLOBAL: save_global(w, v); break;
	case VALUE_REDUCE:
	case VALUE_NEWOBJ: save_object(w, v); break;
	case VALUE_STORAGE: save_storage(w, v); break;
	case VALUE_BYTES:
		w->rc = errmsg_set(w->err, -ENOTSUP,
				   "bytes objects cannot be written in protocol 2");
	}
}

static void pickle_write_save(struct writer *w, const struct value *v)
{
	if (w->rc || refer(w, v))
		return;
	if (w->depth == DUMP_DEPTH_MAX) {
		w->rc = errmsg_set(w->err, -E2BIG,
				   "objects nested more than %d deep",
				   DUMP_DEPTH_MAX);
		return;
	}
	/* A long integer is written again at each reference, as in CPython. */
	if (w->out->len > PICKLE_BYTES_MAX) {
		w->rc = errmsg_set(w->err, -E2BIG,
				   "pickle of more than %u bytes",
				   PICKLE_BYTES_MAX);
		return;
	}
	w->depth++;
	save_kind(w, v);
	w->depth--;
}

void pickle_storages_done(struct pickle_storages *s)
{
	free(s->pid);
	*s = (struct pickle_storages){ 0 };
}

int pickle_dump(const struct value *root, struct bytebuf *out,
		struct pickle_storages *storages, struct errmsg *err)
{
	struct writer w = { .out = out, .storages = storages, .err = err };

	assert(!storages || storages->n == 0);
	bytebuf_add(out, "\x80\x02", 2);
	pickle_write_save(&w, root);
	bytebuf_add_u8(out, '.');
	assert(w.rc || w.depth == 0);
	if (!w.rc && out->failed)
		pickle_write_nomem(&w);
	hashtab_done(&w.objects);
	hashtab_done(&w.names);
	free(w.interned);
	return w.rc;
}

struct value *pickle_copy(struct arena *a, const struct value *v)
{
	struct pickle_storages storages = { 0 };
	struct value *copy = NULL;
	struct bytebuf b = { 0 };

	if (pickle_dump(v, &b, &storages, NULL) == 0)
		(void)pickle_load((struct span){ b.data, b.len }, "", a, &copy,
				  NULL);
	pickle_storages_done(&storages);
	bytebuf_done(&b);
	return copy;
}
