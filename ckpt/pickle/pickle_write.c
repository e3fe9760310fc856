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
#include "ckpt/pickle/pickle.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pickle/pickle_memo.h"
#include "ckpt/pickle/value.h"

#define BATCH 1000 /* _pickle.c BATCHSIZE */

/* The reader bounds nesting as it builds; a graph that was tied together
 * through its memo may go deeper than the reader saw. */
#define DUMP_DEPTH_MAX (4 * PICKLE_DEPTH_MAX)

struct writer {
	struct bytebuf *out;
	struct pickle_storages *storages;
	struct errmsg *err;
	struct pickle_memo memo;
	struct pickle_memo keys; /* of storages, numbered as these */
	uint32_t next; /* memo index */
	unsigned depth;
};

static int pickle_write_save(struct writer *w, const struct value *v);

static int fail_intern(struct writer *w, const struct pickle_memo *m)
{
	if (m->ninterned < MEMO_INTERNED_MAX)
		return errmsg_nomem(w->err, NULL);
	return errmsg_set(w->err, -E2BIG,
			  "more than %d classes, attributes or storages to"
			  " pickle", MEMO_INTERNED_MAX);
}

/* --- memo --------------------------------------------------------------- */

static void emit_put(struct writer *w, uint32_t index)
{
	if (index < 256) {
		bytebuf_add_u8(w->out, 'q');
		bytebuf_add_u8(w->out, (uint8_t)index);
	} else {
		bytebuf_add_u8(w->out, 'r');
		bytebuf_add_le32(w->out, index);
	}
}

static void emit_get(struct writer *w, uint32_t index)
{
	if (index < 256) {
		bytebuf_add_u8(w->out, 'h');
		bytebuf_add_u8(w->out, (uint8_t)index);
	} else {
		bytebuf_add_u8(w->out, 'j');
		bytebuf_add_le32(w->out, index);
	}
}

/* Memoize the object just written. */
static int memoize(struct writer *w, const void *object)
{
	if (!pickle_memo_add(&w->memo, object, w->next))
		return errmsg_nomem(w->err, NULL);
	emit_put(w, w->next++);
	return 0;
}

/* The same for one that is known by its entry. */
static void memoize_entry(struct writer *w, struct pickle_memo_entry *e)
{
	*e = (struct pickle_memo_entry){ .written = true, .index = w->next };
	emit_put(w, w->next++);
}

/* --- scalars and strings ------------------------------------------------ */

static void emit_text(struct writer *w, const char *p, size_t len)
{
	bytebuf_add_u8(w->out, 'X');
	bytebuf_add_le32(w->out, (uint32_t)len);
	bytebuf_add(w->out, p, len);
}

static int save_interned(struct writer *w, const char *p, size_t len)
{
	struct pickle_memo_entry *const e =
		pickle_memo_intern(&w->memo, NULL, p, len);

	if (!e)
		return fail_intern(w, &w->memo);
	if (e->written) {
		emit_get(w, e->index);
		return 0;
	}
	emit_text(w, p, len);
	memoize_entry(w, e);
	return 0;
}

/* The same for a string of the graph, which may also be elsewhere in it. */
static int save_interned_value(struct writer *w, const struct value *v)
{
	uint32_t index;
	int rc;

	if (pickle_memo_find(&w->memo, v, &index)) {
		emit_get(w, index);
		return 0;
	}
	rc = save_interned(w, v->str.p, v->str.len);
	if (rc)
		return rc;
	index = pickle_memo_intern(&w->memo, NULL, v->str.p, v->str.len)->index;
	return pickle_memo_add(&w->memo, v, index) ? 0 : errmsg_nomem(w->err, NULL);
}

/* One character that CPython caches: U+0000 to U+00FF, or nothing at all. */
static bool is_cached(const struct value_str *s)
{
	const uint8_t *const p = (const uint8_t *)s->p;

	return s->len == 0 || (s->len == 1 && p[0] < 0x80) ||
	       (s->len == 2 && (p[0] == 0xc2 || p[0] == 0xc3));
}

static int save_str(struct writer *w, const struct value *v)
{
	if (v->str.len > UINT32_MAX)
		return errmsg_set(w->err, -E2BIG, "string too long to pickle");
	if (is_cached(&v->str))
		return save_interned(w, v->str.p, v->str.len);
	emit_text(w, v->str.p, v->str.len);
	return memoize(w, v);
}

static void save_int(struct writer *w, int64_t i)
{
	if (i >= 0 && i < 256) {
		bytebuf_add_u8(w->out, 'K');
		bytebuf_add_u8(w->out, (uint8_t)i);
	} else if (i >= 0 && i < 65536) {
		bytebuf_add_u8(w->out, 'M');
		bytebuf_add_le16(w->out, (uint16_t)i);
	} else if (i >= INT32_MIN && i <= INT32_MAX) {
		bytebuf_add_u8(w->out, 'J');
		bytebuf_add_le32(w->out, (uint32_t)i);
	} else {
		unsigned n = 8;

		/* Minimal two's complement. */
		while (n > 1 && (i >> (8 * (n - 1) - 1) == 0 ||
				 i >> (8 * (n - 1) - 1) == -1))
			n--;
		bytebuf_add_u8(w->out, 0x8a);
		bytebuf_add_u8(w->out, (uint8_t)n);
		for (unsigned k = 0; k < n; k++)
			bytebuf_add_u8(w->out, (uint8_t)((uint64_t)i >> 8 * k));
	}
}

static void save_bigint(struct writer *w, const struct value_str *digits)
{
	if (digits->len < 256) {
		bytebuf_add_u8(w->out, 0x8a);
		bytebuf_add_u8(w->out, (uint8_t)digits->len);
	} else {
		bytebuf_add_u8(w->out, 0x8b);
		bytebuf_add_le32(w->out, (uint32_t)digits->len);
	}
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

static int save_global(struct writer *w, const char *module, const char *name)
{
	struct pickle_memo_entry *const e =
		pickle_memo_intern(&w->memo, module, name, strlen(name));

	if (!e)
		return fail_intern(w, &w->memo);
	if (e->written) {
		emit_get(w, e->index);
		return 0;
	}
	bytebuf_add_u8(w->out, 'c');
	bytebuf_add(w->out, module, strlen(module));
	bytebuf_add_u8(w->out, '\n');
	bytebuf_add(w->out, name, strlen(name));
	bytebuf_add_u8(w->out, '\n');
	memoize_entry(w, e);
	return 0;
}

/* --- containers ---------------------------------------------------------- */

static int save_key(struct writer *w, const struct value *key, bool attribute)
{
	if (attribute && key->kind == VALUE_STR)
		return save_interned_value(w, key);
	return pickle_write_save(w, key);
}

static int save_pairs(struct writer *w, const struct value_dict *d,
		      size_t from, size_t n, bool attributes)
{
	for (size_t i = from; i < from + n; i++) {
		int rc = save_key(w, d->v[i].key, attributes);

		if (!rc)
			rc = pickle_write_save(w, d->v[i].val);
		if (rc)
			return rc;
	}
	return 0;
}

static int save_elements(struct writer *w, const struct value_seq *s,
			 size_t from, size_t n)
{
	for (size_t i = from; i < from + n; i++) {
		const int rc = pickle_write_save(w, s->v[i]);

		if (rc)
			return rc;
	}
	return 0;
}

/*
 * CPython has two batching loops: for exact dicts and lists, which it can
 * index, and for iterators, where it must look one item ahead.  They differ
 * only at their ends: a lone last item of an iterator goes without a mark,
 * and an exact dict of a multiple of 1000 items ends with an empty batch.
 */
static int batch_dict(struct writer *w, const struct value_dict *d, bool exact,
		      bool attributes)
{
	size_t at = 0, n;
	int rc;

	if (d->n == 0)
		return 0;
	do {
		const size_t left = d->n - at;

		n = left < BATCH ? left : BATCH;
		if (!exact && n == 0)
			return 0;
		if (n == 1 && (!exact || d->n == 1)) {
			rc = save_pairs(w, d, at, 1, attributes);
			bytebuf_add_u8(w->out, 's');
			return rc;
		}
		bytebuf_add_u8(w->out, '(');
		rc = save_pairs(w, d, at, n, attributes);
		bytebuf_add_u8(w->out, 'u');
		at += n;
	} while (!rc && n == BATCH);
	return rc;
}

static int batch_list(struct writer *w, const struct value_seq *s, bool exact)
{
	size_t at = 0;
	int rc = 0;

	while (!rc && at < s->n) {
		const size_t left = s->n - at;
		const size_t n = left < BATCH ? left : BATCH;

		if (n == 1 && (!exact || s->n == 1)) {
			rc = save_elements(w, s, at, 1);
			bytebuf_add_u8(w->out, 'a');
		} else {
			bytebuf_add_u8(w->out, '(');
			rc = save_elements(w, s, at, n);
			bytebuf_add_u8(w->out, 'e');
		}
		at += n;
	}
	return rc;
}

static int save_dict(struct writer *w, const struct value *v, bool attributes)
{
	int rc;

	bytebuf_add_u8(w->out, '}');
	rc = memoize(w, v);
	return rc ? rc : batch_dict(w, &v->dict, true, attributes);
}

static int save_list(struct writer *w, const struct value *v)
{
	int rc;

	bytebuf_add_u8(w->out, ']');
	rc = memoize(w, v);
	return rc ? rc : batch_list(w, &v->seq, true);
}

static int save_tuple(struct writer *w, const struct value *v)
{
	static const uint8_t ops[] = { ')', 0x85, 0x86, 0x87 };
	const size_t n = v->seq.n;
	uint32_t index;
	int rc;

	if (n == 0) {
		bytebuf_add_u8(w->out, ')');
		return 0;
	}
	if (n > 3)
		bytebuf_add_u8(w->out, '(');
	rc = save_elements(w, &v->seq, 0, n);
	if (rc)
		return rc;
	/* A tuple that contains itself was written by way of its elements. */
	if (pickle_memo_find(&w->memo, v, &index)) {
		if (n > 3)
			bytebuf_add_u8(w->out, '1');
		else
			bytebuf_add_fill(w->out, '0', n);
		emit_get(w, index);
		return 0;
	}
	bytebuf_add_u8(w->out, n > 3 ? 't' : ops[n]);
	return memoize(w, v);
}

static int save_object(struct writer *w, const struct value *v)
{
	const struct value_obj *const o = v->obj;
	const struct value *const state = o->state;
	uint32_t index;
	int rc;

	rc = pickle_write_save(w, o->callable);
	if (!rc)
		rc = pickle_write_save(w, o->args);
	if (rc)
		return rc;
	bytebuf_add_u8(w->out, v->kind == VALUE_REDUCE ? 'R' : 0x81);
	/* An object among its own arguments was written by way of them. */
	if (pickle_memo_find(&w->memo, v, &index)) {
		bytebuf_add_u8(w->out, '0');
		emit_get(w, index);
		return 0;
	}
	rc = memoize(w, v);
	if (!rc)
		rc = batch_list(w, &o->items, false);
	if (!rc)
		rc = batch_dict(w, &o->pairs, false, false);
	if (rc || !state)
		return rc;
	if (state->kind == VALUE_DICT &&
	    !pickle_memo_find(&w->memo, state, &index))
		rc = save_dict(w, state, true);
	else
		rc = pickle_write_save(w, state);
	bytebuf_add_u8(w->out, 'b');
	return rc;
}

/* --- storages ------------------------------------------------------------ */

/* The number of a storage: storages are one if their keys are. */
static int number_storage(struct writer *w, const struct value *v, size_t *out)
{
	struct pickle_storages *const s = w->storages;
	const struct value_str *const key = &v->pid->seq.v[2]->str;
	const struct pickle_memo_entry *const e =
		pickle_memo_intern(&w->keys, NULL, key->p, key->len);

	if (!e)
		return fail_intern(w, &w->keys);
	*out = pickle_memo_number(&w->keys, e);
	if (*out < s->n)
		return 0;
	if (!array_reserve(&s->pid, &s->cap, s->n + 1, sizeof(*s->pid)))
		return errmsg_nomem(w->err, NULL);
	s->pid[s->n++] = v;
	return 0;
}

static int save_storage_key(struct writer *w, size_t number)
{
	/* Digits 0..9 are strings of one character; longer keys live in
	 * torch's table and are the same object at each visit. */
	static const char digits[] = "0123456789";
	struct pickle_memo_entry *const e = &w->keys.interned[number].entry;
	char key[24];
	const int len = snprintf(key, sizeof(key), "%zu", number);

	if (len == 1)
		return save_interned(w, digits + number, 1);
	if (e->written) {
		emit_get(w, e->index);
		return 0;
	}
	emit_text(w, key, (size_t)len);
	memoize_entry(w, e);
	return 0;
}

static int save_storage(struct writer *w, const struct value *v)
{
	const struct value *const cls = v->pid->seq.v[1];
	const struct value *const location = v->pid->seq.v[3];
	size_t number = 0;
	int rc;

	rc = number_storage(w, v, &number);
	if (rc)
		return rc;
	bytebuf_add_u8(w->out, '(');
	rc = save_interned(w, "storage", 7);
	if (!rc)
		rc = save_global(w, cls->global.module, cls->global.name);
	if (!rc)
		rc = save_storage_key(w, number);
	if (!rc)
		rc = value_is_str(location, "cpu") ?
			     save_interned_value(w, location) :
			     save_interned(w, "cpu", 3);
	if (rc)
		return rc;
	save_int(w, v->pid->seq.v[4]->i);
	bytebuf_add_u8(w->out, 't');
	emit_put(w, w->next++); /* the tuple's, which nobody will ask for */
	bytebuf_add_u8(w->out, 'Q');
	return 0;
}

/* --- dispatch ------------------------------------------------------------ */

static int save_kind(struct writer *w, const struct value *v)
{
	switch (v->kind) {
	case VALUE_NONE:
		bytebuf_add_u8(w->out, 'N');
		return 0;
	case VALUE_BOOL:
		bytebuf_add_u8(w->out, v->b ? 0x88 : 0x89);
		return 0;
	case VALUE_INT:
		save_int(w, v->i);
		return 0;
	case VALUE_BIGINT:
		save_bigint(w, &v->str);
		return 0;
	case VALUE_FLOAT:
		save_float(w, v->f);
		return 0;
	case VALUE_STR: return save_str(w, v);
	case VALUE_TUPLE: return save_tuple(w, v);
	case VALUE_LIST: return save_list(w, v);
	case VALUE_DICT: return save_dict(w, v, false);
	case VALUE_GLOBAL:
		return save_global(w, v->global.module, v->global.name);
	case VALUE_REDUCE:
	case VALUE_NEWOBJ: return save_object(w, v);
	case VALUE_STORAGE: return save_storage(w, v);
	case VALUE_BYTES: break;
	}
	return errmsg_set(w->err, -ENOTSUP,
			  "bytes objects have no protocol 2 form that we write");
}

static int pickle_write_save(struct writer *w, const struct value *v)
{
	uint32_t index;
	int rc;

	if (pickle_memo_find(&w->memo, v, &index)) {
		emit_get(w, index);
		return 0;
	}
	if (++w->depth > DUMP_DEPTH_MAX)
		return errmsg_set(w->err, -E2BIG,
				  "objects nested more than %d deep",
				  DUMP_DEPTH_MAX);
	/* A long integer is written again at each reference, as in CPython. */
	if (w->out->len > PICKLE_BYTES_MAX)
		return errmsg_set(w->err, -E2BIG,
				  "pickle of more than %u bytes",
				  PICKLE_BYTES_MAX);
	rc = save_kind(w, v);
	w->depth--;
	return rc;
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
	int rc;

	assert(storages->n == 0);
	bytebuf_add(out, "\x80\x02", 2);
	rc = pickle_write_save(&w, root);
	bytebuf_add_u8(out, '.');
	if (!rc && out->failed)
		rc = errmsg_nomem(err, NULL);
	pickle_memo_done(&w.memo);
	pickle_memo_done(&w.keys);
	return rc;
}
