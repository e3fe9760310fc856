/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pickle of `.metadata` has some twenty values for each chunk, and a large checkpoint a
 * million chunks: as nodes of ckpt/pickle they take ten times the file's size.  This builder
 * represents most values by one word: a number is stored in the word, a text stays in the file's
 * bytes, and an object of a known class keeps only the attributes that are read.  The nodes that an
 * object was made from are reused.
 *
 * The memory limit is proportional to the bytes read so far, which end with the pickle.
 */
#include "ckpt/foreign/dcp_unpickle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/machine.h"

#define FAIL PICKLE_FAIL

#define MODULE "torch.distributed.checkpoint."

#define READ_FIRST (1u << 20) /* bytes */
#define ATTRIBUTES_MAX 64u    /* limit of an object's attributes */

/* Larger numbers are clamped to this limit: no size or offset is as large. */
#define INT_LIMIT (INT64_C(1) << 59)

/* The tag in a word's lowest bits; a word of 0 is no value. */
enum tag { NONE, INT, TEXT, GLOBAL, NODE, ANY };

#define TAG_BITS 3
#define AT_BITS 30 /* bits of a text's place in the file */
#define TAG(w) ((enum tag)((w)&7))
#define ANYTHING ((pickle_word)ANY)

enum kind { TUPLE, SIZES, LIST, DICT, OBJECT };

struct node {
	uint8_t kind;
	uint8_t class;
	bool shared;     /* it may be referenced again */
	uint32_t memo;   /* its number in the memo + 1, or 0 */
	pickle_word v[]; /* for sizes: their number first; for objects: attributes; for others:
			  * number of words, their capacity, and their address */
};

enum { N, CAP, AT, GROWING };

struct reader {
	struct pickle_machine m; /* must be first */
	struct dcp_pickle *p;
	struct arena *keep;
	size_t kept;        /* bytes of `keep` in use before this pickle */
	struct node *spare; /* free list of tuples and dicts; v[N] is the next */
	struct node *empty; /* the empty tuple */
};

/* A GLOBAL word has the class and the number of the type. */
static const struct {
	const char *module, *name;
	const char *attributes[4];
} classes[DCP_CLASSES] = {
	[DCP_SIZE] = { "torch", "Size", { NULL } },
	[DCP_ORDERED] = { "collections", "OrderedDict", { NULL } },
	[DCP_ROOT] = { MODULE "metadata",
		       "Metadata",
		       { "state_dict_metadata", "planner_data", "storage_data" } },
	[DCP_TENSOR] = { MODULE "metadata",
			 "TensorStorageMetadata",
			 { "properties", "size", "chunks" } },
	[DCP_PROPERTIES] = { MODULE "metadata", "TensorProperties", { "dtype" } },
	[DCP_CHUNK] = { MODULE "metadata", "ChunkStorageMetadata", { "offsets", "sizes" } },
	[DCP_INDEX] = { MODULE "metadata", "MetadataIndex", { "fqn", "offset" } },
	[DCP_INFO] = { MODULE "filesystem",
		       "_StorageInfo",
		       { "relative_path", "offset", "length", "transform_descriptors" } },
};

static struct reader *reader_of(struct pickle_machine *m)
{
	return (struct reader *)m;
}

static struct node *node_of(pickle_word w)
{
	return TAG(w) == NODE ? (struct node *)(uintptr_t)(w - NODE) : NULL;
}

static pickle_word word_of(const struct node *x)
{
	return x ? (pickle_word)(uintptr_t)x + NODE : 0;
}

/* Return the bytes of memory in use. */
static size_t used(const struct reader *r)
{
	return r->m.in.len + r->p->a.used + r->keep->used - r->kept +
	       (r->m.stack_cap + r->m.memo_cap) * sizeof(pickle_word);
}

static size_t most(const struct reader *r)
{
	return r->m.in.len * DCP_MEMORY_PER_BYTE + DCP_MEMORY_LEAST;
}

static void check_memory(struct pickle_machine *m)
{
	if (used(reader_of(m)) > most(reader_of(m)))
		FAIL(m, -E2BIG, "describes too much for its size");
}

static void *allot(struct pickle_machine *m, struct arena *a, size_t size)
{
	void *p = m->rc ? NULL : arena_alloc(a, size);

	check_memory(m);
	if (!p)
		FAIL(m, -ENOMEM, "out of memory");
	return m->rc ? NULL : p;
}

/* Allocate a node with that many words; nodes for sizes go to `keep`.  NULL after an error. */
static struct node *new_node(struct pickle_machine *m, enum kind kind, size_t words)
{
	struct node *x = allot(m, kind == SIZES ? reader_of(m)->keep : &reader_of(m)->p->a,
			       sizeof(*x) + words * sizeof(*x->v));

	if (x)
		x->kind = (uint8_t)kind;
	return x;
}

/* Make a node reusable, unless it may be referenced again. */
static void recycle(struct pickle_machine *m, pickle_word w)
{
	struct node *x = node_of(w);

	if (!x || x->shared || (x->kind != DICT && x->kind != TUPLE))
		return;
	if (x->memo)
		m->memo[x->memo - 1] = NONE;
	x->memo = 0;
	x->shared = true; /* until it is reused */
	x->v[N] = (pickle_word)(uintptr_t)reader_of(m)->spare;
	reader_of(m)->spare = x;
}

/* Return an empty tuple, list or dict. */
static struct node *new_growing(struct pickle_machine *m, enum kind kind)
{
	struct node *x = kind == LIST ? NULL : reader_of(m)->spare;

	if (!x)
		return new_node(m, kind, GROWING);
	reader_of(m)->spare = (struct node *)(uintptr_t)x->v[N];
	x->kind = (uint8_t)kind;
	x->shared = false;
	x->v[N] = 0;
	return x;
}

/* Append words to a tuple, a list or a dict; drop them for other objects. */
static void extend(struct pickle_machine *m, pickle_word to, const pickle_word *v, size_t n)
{
	struct node *x = node_of(to);
	pickle_word *words;
	size_t had;

	if (!x || x->kind == SIZES || x->kind == OBJECT)
		return;
	words = (pickle_word *)(uintptr_t)x->v[AT];
	had = (size_t)x->v[N];
	if (had + n > x->v[CAP]) {
		x->v[CAP] = had + n > 2 * x->v[CAP] ? had + n : 2 * x->v[CAP];
		words = allot(m, &reader_of(m)->p->a, x->v[CAP] * sizeof(*words));
		if (!words)
			return;
		if (had)
			memcpy(words, (void *)(uintptr_t)x->v[AT], had * sizeof(*words));
		x->v[AT] = (pickle_word)(uintptr_t)words;
	}
	if (n)
		memcpy(words + had, v, n * sizeof(*v));
	x->v[N] += n;
}

static pickle_word int_word(int64_t i)
{
	i = i >= INT_LIMIT ? INT_LIMIT - 1 : i < -INT_LIMIT ? -INT_LIMIT : i;
	return (pickle_word)i << TAG_BITS | INT;
}

static pickle_word global_word(const struct value *v)
{
	size_t class = DCP_CLASSES;

	while (--class)
		if (value_is_global(v, classes[class].module, classes[class].name))
			break;
	return (pickle_word)dtype_from_value(v) << 16 | (pickle_word) class << TAG_BITS | GLOBAL;
}

static pickle_word make_atom(struct pickle_machine *m, const struct value *v)
{
	const uint8_t *text = (const uint8_t *)v->str.p;

	switch (v->kind) {
	case VALUE_INT:
		return int_word(v->i);
	case VALUE_BIGINT:
		return int_word(text[v->str.len - 1] & 0x80 ? INT64_MIN : INT64_MAX);
	case VALUE_STR:
		return (pickle_word)v->str.len << (TAG_BITS + AT_BITS) |
		       (pickle_word)(text - m->in.p) << TAG_BITS | TEXT;
	case VALUE_GLOBAL:
		return global_word(v);
	default:
		return ANYTHING;
	}
}

static bool are_sizes(const pickle_word *v, size_t n)
{
	uint64_t size;

	for (size_t i = 0; i < n; i++)
		if (!dcp_count_of(v[i], &size))
			return false;
	return n <= TENSOR_DIMS_MAX;
}

static struct node *make_sizes(struct pickle_machine *m, const pickle_word *v, size_t n)
{
	struct node *x =
		n || !reader_of(m)->empty ? new_node(m, SIZES, n + 1) : reader_of(m)->empty;

	if (!x)
		return NULL;
	if (!n)
		reader_of(m)->empty = x;
	x->v[0] = n;
	for (size_t i = 0; i < n; i++)
		x->v[i + 1] = v[i] >> TAG_BITS;
	return x;
}

static pickle_word make_container(struct pickle_machine *m, enum value_kind kind,
				  const pickle_word *v, size_t n)
{
	struct node *x;

	if (kind == VALUE_TUPLE && are_sizes(v, n))
		return word_of(make_sizes(m, v, n));
	x = new_growing(m, kind == VALUE_TUPLE ? TUPLE : kind == VALUE_LIST ? LIST : DICT);
	if (x && n)
		extend(m, word_of(x), v, n);
	return word_of(x);
}

static size_t count_attributes(enum dcp_class c)
{
	size_t n = 0;

	while (n < COUNT(classes[c].attributes) && classes[c].attributes[n])
		n++;
	return n;
}

/* Make an object of a class from the arguments of its call. */
static pickle_word construct(struct pickle_machine *m, enum value_kind kind, pickle_word callable,
			     pickle_word args)
{
	const enum dcp_class c = TAG(callable) == GLOBAL
					 ? (enum dcp_class)(callable >> TAG_BITS & 0xff)
					 : DCP_NO_CLASS;
	const pickle_word *v;
	pickle_word made = ANYTHING;
	struct node *x;
	size_t n;

	dcp_elements(args, &v, &n);
	if (c == DCP_ORDERED) {
		made = word_of(new_growing(m, DICT));
	} else if (c == DCP_SIZE) {
		made = n == 1 ? v[0] : ANYTHING;
	} else if (c != DCP_NO_CLASS) {
		x = new_node(m, OBJECT, count_attributes(c));
		for (size_t i = 0; x && i < count_attributes(c); i++)
			x->v[i] = kind == VALUE_REDUCE && i < n ? v[i] : ANYTHING;
		if (x)
			x->class = (uint8_t)c;
		made = word_of(x);
	}
	recycle(m, args);
	return made;
}

static struct value_str text_in(const struct pickle_bytes *in, pickle_word w)
{
	if (TAG(w) != TEXT)
		return (struct value_str){ 0 };
	return (struct value_str){
		(const char *)in->p + (w >> TAG_BITS & ((1u << AT_BITS) - 1)),
		(size_t)(w >> (TAG_BITS + AT_BITS)),
	};
}

static struct value_str text_of(const struct pickle_machine *m, pickle_word w)
{
	return text_in(&m->in, w);
}

/* Take the known attributes out of a dict. */
static void set_attributes(struct pickle_machine *m, struct node *x, const struct dcp_pairs *from)
{
	const size_t known = count_attributes((enum dcp_class)x->class);

	/* Ignore large dicts: a text may be long and occur often, so it is not searched. */
	if (from->n > ATTRIBUTES_MAX)
		FAIL(m, -E2BIG, "an object with more than %u attributes", ATTRIBUTES_MAX);
	for (size_t i = 0; i < from->n && !m->rc; i++)
		for (size_t k = 0; k < known; k++) {
			const char *name = classes[x->class].attributes[k];
			const struct value_str key = text_of(m, from->v[2 * i]);

			if (key.len == strlen(name) && memcmp(key.p, name, key.len) == 0)
				x->v[k] = from->v[2 * i + 1];
		}
}

static void build(struct pickle_machine *m, pickle_word object, pickle_word state)
{
	struct node *x = node_of(object);
	struct dcp_pairs pairs;
	const pickle_word *v;
	size_t n;

	if (x && x->kind == OBJECT && dcp_elements(state, &v, &n)) {
		if (dcp_pairs(state, &pairs))
			set_attributes(m, x, &pairs);
		else if (x->class == DCP_PROPERTIES && n) /* from its __getstate__ */
			x->v[0] = v[0];
	}
	recycle(m, state);
}

static void share(pickle_word w)
{
	struct node *x = node_of(w);

	if (x)
		x->shared = true;
}

static void store(struct pickle_machine *m, pickle_word w, size_t index)
{
	struct node *x = node_of(w), *old = node_of(m->memo[index]);

	if (old)
		old->memo = 0;
	if (!x)
		return;
	x->shared |= x->memo != 0;
	x->memo = (uint32_t)index + 1;
}

int dcp_unpickle(struct dcp_pickle *p, const struct source *src, struct arena *keep,
		 struct errmsg *err)
{
	static const struct pickle_builder builder = {
		.atom = make_atom,
		.container = make_container,
		.append = extend,
		.set = extend,
		.construct = construct,
		.build = build,
		.text = text_of,
		.store = store,
		.share = share,
		.grown = check_memory,
	};
	struct reader r = {
		.m = { .b = &builder,
		       .file = src->name,
		       .part = "metadata",
		       .a = &p->a,
		       .err = err },
		.p = p,
		.keep = keep,
		.kept = keep->used,
	};
	int rc;

	*p = (struct dcp_pickle){ 0 };
	r.m.in = (struct pickle_bytes){ .src = src, .first = READ_FIRST, .end = (size_t)src->size };
	rc = pickle_run(&r.m);
	p->in = r.m.in;
	p->root = r.m.root;
	r.m.stack_cap = r.m.memo_cap = 0;
	p->budget = most(&r) > used(&r) ? most(&r) - used(&r) : 0;
	return rc == -ENODATA ? -EBADMSG : rc;
}

void dcp_unpickled_done(struct dcp_pickle *p)
{
	free(p->in.p);
	arena_done(&p->a);
	*p = (struct dcp_pickle){ 0 };
}

pickle_word dcp_attribute(pickle_word w, enum dcp_class c, size_t i)
{
	const struct node *x = node_of(w);

	return x && x->kind == OBJECT && x->class == c ? x->v[i] : 0;
}

bool dcp_elements(pickle_word w, const pickle_word **v, size_t *n)
{
	const struct node *x = node_of(w);

	*v = NULL;
	*n = 0;
	if (!x || x->kind == OBJECT || x->kind == SIZES)
		return false;
	*n = (size_t)x->v[N];
	*v = (const pickle_word *)(uintptr_t)x->v[AT];
	return true;
}

bool dcp_pairs(pickle_word w, struct dcp_pairs *out)
{
	size_t n;

	dcp_elements(w, &out->v, &n);
	out->n = n / 2;
	return node_of(w) && node_of(w)->kind == DICT;
}

bool dcp_sizes(pickle_word w, const uint64_t **v, size_t *n)
{
	const struct node *x = node_of(w);

	if (!x || x->kind != SIZES)
		return false;
	*n = (size_t)x->v[0];
	*v = x->v + 1;
	return true;
}

bool dcp_int_of(pickle_word w, int64_t *out)
{
	*out = (int64_t)w >> TAG_BITS;
	return TAG(w) == INT;
}

bool dcp_count_of(pickle_word w, uint64_t *out)
{
	int64_t i;

	if (!dcp_int_of(w, &i) || i < 0)
		return false;
	*out = (uint64_t)i;
	return true;
}

bool dcp_text_of(const struct dcp_pickle *p, pickle_word w, struct value_str *out)
{
	const struct value_str t = text_in(&p->in, w);

	if (t.p)
		*out = t;
	return t.p && !memchr(t.p, '\0', t.len);
}

enum dtype dcp_dtype_of(pickle_word w)
{
	return TAG(w) == GLOBAL ? (enum dtype)(w >> 16) : DTYPE_OTHER;
}
