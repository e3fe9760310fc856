/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The builder of values, which are inert nodes:
 *
 *   GLOBAL 'my.pkg Scheduler' ->  node {module, name}
 *   REDUCE                    ->  node {callable, args}
 *   BUILD                     ->  node.state = ...
 *   BINPERSID                 ->  node for a storage, its tuple checked;
 *                                 in files older than zip also for a class
 */
#include "ckpt/format/pickle.h"

#include <errno.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/machine.h"
#include "ckpt/format/value.h"

#define FAIL PICKLE_FAIL

struct reader {
	struct pickle_machine m; /* must be first */
	struct pickle_part *out;
	size_t limit, used; /* of the arena, before this pickle */
	size_t memory;	    /* bytes of it that may be used */
	size_t nvalues;	    /* values made so far */
	size_t most;	    /* limit of values */
};

static struct value *node_of(pickle_word w)
{
	return (struct value *)(uintptr_t)w;
}

/* Return the known number of the pickle's bytes. */
static size_t size_of(const struct pickle_machine *m)
{
	return m->in.len - m->start;
}

static void fail_nomem(struct pickle_machine *m)
{
	if (m->a->refused)
		FAIL(m, -E2BIG,
		     "needs more than %zu MiB of memory, the limit for a pickle of %zu bytes",
		     ((struct reader *)m)->memory >> 20, size_of(m));
	else
		FAIL(m, -ENOMEM, "out of memory");
}

/* Limit the values, and the arena bytes that they may need, unless the caller's limit is
 * lower. */
static void set_limit(struct pickle_machine *m)
{
	struct reader *r = (struct reader *)m;
	const uint64_t most = (uint64_t)size_of(m) * PICKLE_MEMORY_PER_BYTE + 65536;

	if (m->a->refused)
		fail_nomem(m);
	r->memory = (size_t)(most < PICKLE_MEMORY_MAX ? most : PICKLE_MEMORY_MAX);
	if (r->limit && r->limit - r->used < r->memory)
		r->memory = r->limit - r->used;
	m->a->limit = r->used + r->memory;
	r->most = PICKLE_VALUES_FEW + size_of(m) / PICKLE_BYTES_PER_VALUE;
}

/*
 * Return the word of a new value; NULL if memory ran out.  If each byte of a pickle made a value,
 * its values would take 50 times its size; checkpoints have longer opcodes.
 */
static pickle_word made(struct pickle_machine *m, struct value *v)
{
	struct reader *r = (struct reader *)m;

	if (!v)
		fail_nomem(m);
	else if (++r->nvalues > r->most)
		FAIL(m, -E2BIG, "more than %zu values in %zu bytes: this is no checkpoint's pickle",
		     r->most, size_of(m));
	return (pickle_word)(uintptr_t)v;
}

/* Record that `child` lies within `parent`. */
static void nest(struct pickle_machine *m, struct value *parent,
		 const struct value *child)
{
	if (child->depth + 1 > parent->depth)
		parent->depth = child->depth + 1;
	if (parent->depth > PICKLE_DEPTH_MAX)
		FAIL(m, -E2BIG, "nested more than %d deep", PICKLE_DEPTH_MAX);
}

static bool has_text(enum value_kind kind)
{
	return kind == VALUE_STR || kind == VALUE_BYTES || kind == VALUE_BIGINT;
}

static pickle_word make_atom(struct pickle_machine *m, const struct value *from)
{
	struct value *v = value_new(m->a, from->kind);

	if (!v)
		return made(m, NULL);
	*v = *from;
	if (has_text(v->kind))
		v->str.p = arena_strndup(m->a, from->str.p, from->str.len);
	return made(m, has_text(v->kind) && !v->str.p ? NULL : v);
}

static pickle_word make_container(struct pickle_machine *m, enum value_kind kind,
				  const pickle_word *from, size_t n)
{
	struct value *v = value_new(m->a, kind);

	if (v && n)
		v->seq.v = arena_alloc(m->a, n * sizeof(*v->seq.v));
	for (size_t i = 0; v && v->seq.v && i < n; i++) {
		v->seq.v[i] = node_of(from[i]);
		v->seq.n = v->seq.cap = i + 1;
		nest(m, v, v->seq.v[i]);
	}
	return made(m, v && v->seq.n == n ? v : NULL);
}

/* Append to a list or an object. */
static void append(struct pickle_machine *m, pickle_word list, const pickle_word *v,
		   size_t n)
{
	struct value *to = node_of(list);

	if (to->kind != VALUE_LIST && !value_is_object(to))
		FAIL(m, -EBADMSG, "appends to a %s", value_kind_name(to));
	for (size_t i = 0; i < n && !m->rc; i++) {
		nest(m, to, node_of(v[i]));
		if (!value_append(m->a, to, node_of(v[i])))
			fail_nomem(m);
	}
}

/* Set entries of a dict or an object. */
static void set_items(struct pickle_machine *m, pickle_word dict, const pickle_word *v,
		      size_t n)
{
	struct value *to = node_of(dict);

	if (to->kind != VALUE_DICT && !value_is_object(to))
		FAIL(m, -EBADMSG, "sets an item of a %s", value_kind_name(to));
	for (size_t i = 0; i < n && !m->rc; i += 2) {
		nest(m, to, node_of(v[i]));
		nest(m, to, node_of(v[i + 1]));
		if (!value_put(m->a, to, node_of(v[i]), node_of(v[i + 1])))
			fail_nomem(m);
	}
}

static pickle_word construct(struct pickle_machine *m, enum value_kind kind,
			     pickle_word callable, pickle_word arguments)
{
	struct value *args = node_of(arguments), *of = node_of(callable);
	struct value *v;

	if (args->kind != VALUE_TUPLE) {
		FAIL(m, -EBADMSG, "arguments are a %s, not a tuple",
		     value_kind_name(args));
		return 0;
	}
	v = value_new_reduce(m->a, of, args);
	if (v) {
		v->kind = kind;
		nest(m, v, args);
		nest(m, v, of);
	}
	return made(m, v);
}

static void build(struct pickle_machine *m, pickle_word object, pickle_word state)
{
	struct value *v = node_of(object);

	if (!value_is_object(v) || v->obj->state) {
		FAIL(m, -EBADMSG, "sets the state of a %s", value_kind_name(v));
		return;
	}
	v->obj->state = node_of(state);
	nest(m, v, v->obj->state);
}

/* ('storage', class, key, location, numel) in zip files; in older ones, a sixth
 * field describes a view (torch/serialization.py). */
static bool is_storage_id(const struct value *id, size_t fields)
{
	return id->kind == VALUE_TUPLE && id->seq.n == fields &&
	       value_is_str(id->seq.v[0], "storage") &&
	       id->seq.v[1]->kind == VALUE_GLOBAL &&
	       value_is_cstr(id->seq.v[2]) && value_is_cstr(id->seq.v[3]) &&
	       id->seq.v[4]->kind == VALUE_INT && id->seq.v[4]->i >= 0;
}

/* ('module', class, file, source): stands for the class. */
static bool is_class_id(const struct value *id)
{
	return id->kind == VALUE_TUPLE && id->seq.n == 4 &&
	       value_is_str(id->seq.v[0], "module") &&
	       id->seq.v[1]->kind == VALUE_GLOBAL;
}

static pickle_word make_storage(struct pickle_machine *m, pickle_word w)
{
	struct pickle_part *out = ((struct reader *)m)->out;
	struct value *id = node_of(w);
	struct value *v;

	if (!out->is_whole && is_class_id(id))
		return made(m, id->seq.v[1]);
	if (!is_storage_id(id, out->is_whole ? 5 : 6)) {
		FAIL(m, -EBADMSG, "persistent id is not a storage's");
		return 0;
	}
	v = value_new(m->a, VALUE_STORAGE);
	if (v)
		v->pid = id;
	if (!out->is_whole && !value_append(m->a, &out->storages, v))
		fail_nomem(m);
	return made(m, v);
}

static struct value_str text_of(const struct pickle_machine *m, pickle_word w)
{
	const struct value *v = node_of(w);

	(void)m;
	return v->kind == VALUE_STR ? v->str : (struct value_str){ 0 };
}

int pickle_load_part(struct pickle_bytes *in, struct arena *a, struct pickle_part *part,
		     struct errmsg *err)
{
	static const struct pickle_builder builder = {
		.atom = make_atom,
		.container = make_container,
		.append = append,
		.set = set_items,
		.construct = construct,
		.build = build,
		.persid = make_storage,
		.text = text_of,
		.grown = set_limit,
	};
	struct reader r = {
		.m = { .b = &builder, .in = *in, .file = part->file, .part = part->part,
		       .a = a, .err = err },
		.out = part,
		.limit = a->limit,
		.used = a->used,
	};

	part->storages = (struct value){ .kind = VALUE_LIST };
	a->refused = false;
	pickle_run(&r.m);
	*in = r.m.in;
	part->root = node_of(r.m.root);
	a->limit = r.limit;
	return r.m.rc;
}

int pickle_load(struct span bytes, const char *name, struct arena *a,
		struct value **root, struct errmsg *err)
{
	struct pickle_bytes in = { .p = (uint8_t *)bytes.p, .len = bytes.len,
				   .end = bytes.len };
	struct pickle_part part = { .file = name, .part = "data.pkl",
				    .is_whole = true };
	int rc;

	if (bytes.len > PICKLE_BYTES_MAX)
		return errmsg_set(err, -E2BIG,
				  "%s: data.pkl: %zu bytes, over the limit of %u", name,
				  bytes.len, PICKLE_BYTES_MAX);
	rc = pickle_load_part(&in, a, &part, err);
	if (!rc)
		*root = part.root;
	return rc == -ENODATA ? -EBADMSG : rc;
}
