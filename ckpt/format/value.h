/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VALUE_H
#define UCKPT_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct cJSON;

/*
 * Python values as data.  A pickle is read into a graph of these and nothing
 * in it is ever called: a global is a pair of names, a reduction is a node
 * that remembers its callable and arguments, so that unknown objects can be written out again
 * unchanged.
 *
 * Nodes may be shared and lists, dicts and objects may even form cycles, as
 * in Python; identity of nodes is identity of objects.
 */
enum value_kind {
	VALUE_NONE,
	VALUE_BOOL,
	VALUE_INT,    /* fits int64_t */
	VALUE_BIGINT, /* little-endian two's complement in `str` */
	VALUE_FLOAT,
	VALUE_STR,   /* UTF-8 with surrogates passed through, in `str` */
	VALUE_BYTES, /* in `str` */
	VALUE_TUPLE, /* in `seq` */
	VALUE_LIST,  /* in `seq` */
	VALUE_DICT,  /* in `dict`, insertion order */
	VALUE_GLOBAL,
	VALUE_REDUCE,  /* callable(*args), in `obj` */
	VALUE_NEWOBJ,  /* cls.__new__(cls, *args), in `obj` */
	VALUE_STORAGE, /* persistent id, in `pid`: a torch storage */
};

struct value;

struct value_pair {
	struct value *key;
	struct value *val;
};

struct value_str {
	const char *p; /* NUL-terminated, but may contain NULs */
	size_t len;
};

struct value_seq {
	struct value **v;
	size_t n;
	size_t cap;
};

struct value_dict {
	struct value_pair *v;
	size_t n;
	size_t cap;
};

struct value_obj {
	struct value *callable;
	struct value *args;
	struct value *state;     /* from BUILD, or NULL */
	struct value_seq items;  /* appended after construction */
	struct value_dict pairs; /* set after construction (OrderedDict) */
};

struct value {
	enum value_kind kind;
	uint32_t depth; /* nesting depth below, as known when the value was built */
	union {
		bool b;
		int64_t i;
		double f;
		struct value_str str;
		struct value_seq seq;
		struct value_dict dict;
		struct {
			const char *module;
			const char *name;
		} global;
		struct value_obj *obj;
		struct value *pid;
	};
};

/* Constructors: NULL when the arena is exhausted, or if an argument is NULL.
 * Strings are borrowed: they must outlive the arena's values. */
struct value *value_new(struct arena *a, enum value_kind kind);
struct value *value_new_int(struct arena *a, int64_t i);
struct value *value_new_bool(struct arena *a, bool b);
struct value *value_new_float(struct arena *a, double f);
struct value *value_new_str(struct arena *a, const char *s);
struct value *value_new_global(struct arena *a, const char *module,
			       const char *name);
struct value *value_new_reduce(struct arena *a, struct value *callable,
			       struct value *args);

/* Make an int for a double that has an exact integer value, else a float.  And: convert JSON; lists
 * under the keys in `tuples` (NULL: none), and lists in these, become tuples. cJSON limits the
 * depth. */
struct value *value_new_number(struct arena *a, double x);
struct value *value_from_json(struct arena *a, const struct cJSON *json, const char *tuples);

/* An instance of a class, made without arguments, that pickles its attributes. */
struct value *value_new_object(struct arena *a, struct value *type,
			       struct value *attributes);

/* A collections.OrderedDict without entries. */
struct value *value_new_ordered(struct arena *a);

/* The Python value of a C value: a bool, an integer, a double, a string, or a value itself.
 * `true` is an int in C and does not compile, nor do other ints. */
#define value_of(a, x)                                           \
	_Generic((x), bool: value_new_bool, double: value_new_float, \
		unsigned: value_new_int, int64_t: value_new_int,     \
		uint64_t: value_new_int, char *: value_new_str,      \
		const char *: value_new_str, struct value *: value_itself)(a, x)
static inline struct value *value_itself(struct arena *a, struct value *v)
{
	(void)a;
	return v;
}

/*
 * Append `x` to a list or a tuple, or to what an object gets after its construction; set an
 * item of a dict or an OrderedDict: `key` and `x` are C values or values.  False when
 * the arena is exhausted or an argument is NULL; a->failed is then set, so the results of
 * constructors need not be checked one by one.
 */
#define value_append(a, list, x) value_seq_append(a, list, value_of(a, x))
#define value_put(a, dict, key, x) value_dict_put(a, dict, value_of(a, key), value_of(a, x))
bool value_seq_append(struct arena *a, struct value *list, struct value *v);
bool value_dict_put(struct arena *a, struct value *dict, struct value *key, struct value *val);

/* A tuple, a list or a dict of up to eight C values, in a dict keys and values in turn. */
#define value_tuple_of(a, ...) VALUE_FILL(a, VALUE_TUPLE, __VA_ARGS__)
#define value_list_of(a, ...) VALUE_FILL(a, VALUE_LIST, __VA_ARGS__)
#define value_dict_of(a, ...) VALUE_FILL(a, VALUE_DICT, __VA_ARGS__)

#define VALUE_FILL(a, kind, ...)                                                            \
	value_fill(a, value_new(a, kind),                                                   \
		   (struct value *[]){ VALUE_PICK(__VA_ARGS__, VALUE_8, VALUE_7, VALUE_6,   \
						  VALUE_5, VALUE_4, VALUE_3, VALUE_2,       \
						  VALUE_1, )(a, __VA_ARGS__) },             \
		   VALUE_PICK(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, ))
#define VALUE_PICK(a, b, c, d, e, f, g, h, macro, ...) macro
#define VALUE_1(a, x) value_of(a, x)
#define VALUE_2(a, x, ...) value_of(a, x), VALUE_1(a, __VA_ARGS__)
#define VALUE_3(a, x, ...) value_of(a, x), VALUE_2(a, __VA_ARGS__)
#define VALUE_4(a, x, ...) value_of(a, x), VALUE_3(a, __VA_ARGS__)
#define VALUE_5(a, x, ...) value_of(a, x), VALUE_4(a, __VA_ARGS__)
#define VALUE_6(a, x, ...) value_of(a, x), VALUE_5(a, __VA_ARGS__)
#define VALUE_7(a, x, ...) value_of(a, x), VALUE_6(a, __VA_ARGS__)
#define VALUE_8(a, x, ...) value_of(a, x), VALUE_7(a, __VA_ARGS__)
struct value *value_fill(struct arena *a, struct value *to, struct value *const *v, size_t n);

/* A key of a dict, which is borrowed, and its value; if the value is NULL, the key is omitted. */
struct value_field {
	const char *key;
	struct value *val;
};

/* A new dict with these fields; or a copy of the dict or OrderedDict `from`, in which those of its
 * keys that are fields get the fields' values.  Any other `from` is returned unchanged. */
struct value *value_new_fields(struct arena *a, const struct value_field *f, size_t n);
struct value *value_edit(struct arena *a, struct value *from, const struct value_field *f,
			 size_t n);

/* A new dict or OrderedDict, like `from`, but without entries. */
struct value *value_new_like(struct arena *a, const struct value *from);

/* The pairs of a dict or of an object filled like one (OrderedDict); NULL if
 * `v` is neither, or NULL itself. */
const struct value_dict *value_pairs(const struct value *v);

/* The elements of a tuple or list, or of a `torch.Size`; NULL otherwise. */
const struct value_seq *value_items(const struct value *v);

/* Element `i` of a tuple or list; NULL if there is none. */
struct value *value_item(const struct value *v, size_t i);

/* Element `i` of a tuple or list, or the value under key `i` of a dict; NULL if there is none.
 * torch's optimizers number their states; some of DeepSpeed's list them. */
struct value *value_numbered(const struct value *v, size_t i);

/* The value under string key `key`: the last one if it is there twice, as in
 * Python.  NULL if absent or if `v` has no pairs.  O(n). */
struct value *value_find(const struct value *v, const char *key);

/* The pairs or the elements of the value under `key`. */
const struct value_dict *value_find_pairs(const struct value *v,
					  const char *key);
const struct value_seq *value_find_items(const struct value *v,
					 const char *key);

/* value_find along a path of keys, ending with NULL. */
struct value *value_find_path(const struct value *v, ...)
	__attribute__((sentinel));

/* Is `v` a REDUCE or a NEWOBJ? */
bool value_is_object(const struct value *v);

bool value_is_str(const struct value *v, const char *s);
bool value_is_global(const struct value *v, const char *module,
		     const char *name);

/* Is `v` a string that can be used as a C string (no NUL inside)? */
bool value_is_cstr(const struct value *v);

/* Return `v` as a C string, or "?", for messages. */
const char *value_cstr(const struct value *v);

/* Is `v` the bool True? */
bool value_is_true(const struct value *v);

/*
 * An integer that may come as an int, a bool or as an enum member (`ZeroStageEnum(2)`, which newer
 * DeepSpeed writes where older ones wrote 2).  False for any other `v`, also NULL.
 */
bool value_get_int(const struct value *v, int64_t *out);

/* As value_get_int, for a non-negative integer. */
bool value_get_count(const struct value *v, uint64_t *out);

/* Is it a number, a text, None, or a short list of these? Other options of an optimizer are not
 * written to files that programs load. */
bool value_is_plain(const struct value *v);

/* A short name of the kind, for messages: "dict", "str", ... */
const char *value_kind_name(const struct value *v);

#endif
