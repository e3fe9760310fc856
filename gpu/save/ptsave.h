/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_PTSAVE_H
#define UCTRAIN_PTSAVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"

struct backend;
struct errmsg;

/* A storage, which stays where it is until the file is written. */
struct ptsave_storage {
	enum dtype dtype;
	uint64_t numel;
	const void *p;        /* borrowed */
	struct backend *from; /* the owner of the memory at `p`; NULL: host
			       * memory */
	bool wide;            /* float32 in memory, converted to dtype when written */
};

/*
 * A file of torch.save being built: Python objects, and tensor storages in host or device
 * memory.  Zero-initialised it is empty.
 *
 * Values and strings that are copied live in the arena, as long as the file; other strings are
 * borrowed.  An allocation failure is noted there and reported by ptsave_write: functions that
 * make a value return NULL then, and take NULL.
 */
struct ptsave {
	struct arena arena;
	struct ptsave_storage *storages;
	size_t nstorages, cap;
};

static inline void ptsave_done(struct ptsave *s)
{
	arena_done(&s->arena);
}

/* The Python value of a C value: bool, an integer, double, a string, or a value itself.  `true`
 * is an int in C and does not compile, nor do other ints. */
#define ptsave_value(s, x) \
	_Generic((x), bool: value_new_bool, double: value_new_float,   \
		unsigned: value_new_int, int64_t: value_new_int,       \
		uint64_t: value_new_int, char *: value_new_str,        \
		const char *: value_new_str,                           \
		struct value *: ptsave_itself)(&(s)->arena, x)
struct value *ptsave_itself(struct arena *a, struct value *v);

/* Append `x` to a tuple or list; add it to a dict under a new key. */
#define ptsave_add(s, list, x) value_append(&(s)->arena, list, ptsave_value(s, x))
#define ptsave_set(s, dict, key, x) value_dict_set(&(s)->arena, dict, key, ptsave_value(s, x))

#define ptsave_none(s) value_new(&(s)->arena, VALUE_NONE)
/* Empty ones. */
#define ptsave_tuple(s) value_new(&(s)->arena, VALUE_TUPLE)
#define ptsave_list(s) value_new(&(s)->arena, VALUE_LIST)
#define ptsave_dict(s) value_new(&(s)->arena, VALUE_DICT)
#define ptsave_ordered_dict(s) value_new_ordered(&(s)->arena)

/* A tuple, a list or a dict of up to eight values, in a dict keys and values in turn. */
#define ptsave_tuple_of(s, ...) PTSAVE_FILL(s, ptsave_tuple(s), __VA_ARGS__)
#define ptsave_list_of(s, ...) PTSAVE_FILL(s, ptsave_list(s), __VA_ARGS__)
#define ptsave_dict_of(s, ...) PTSAVE_FILL(s, ptsave_dict(s), __VA_ARGS__)

#define PTSAVE_FILL(s, to, ...)                                                                \
	ptsave_fill(s, to,                                                                     \
		    (struct value *[]){ PTSAVE_PICK(__VA_ARGS__, PTSAVE_8, PTSAVE_7, PTSAVE_6, \
						    PTSAVE_5, PTSAVE_4, PTSAVE_3, PTSAVE_2,    \
						    PTSAVE_1, )(s, __VA_ARGS__) },             \
		    PTSAVE_PICK(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, ))
#define PTSAVE_PICK(a, b, c, d, e, f, g, h, macro, ...) macro
#define PTSAVE_1(s, x) ptsave_value(s, x)
#define PTSAVE_2(s, x, ...) ptsave_value(s, x), PTSAVE_1(s, __VA_ARGS__)
#define PTSAVE_3(s, x, ...) ptsave_value(s, x), PTSAVE_2(s, __VA_ARGS__)
#define PTSAVE_4(s, x, ...) ptsave_value(s, x), PTSAVE_3(s, __VA_ARGS__)
#define PTSAVE_5(s, x, ...) ptsave_value(s, x), PTSAVE_4(s, __VA_ARGS__)
#define PTSAVE_6(s, x, ...) ptsave_value(s, x), PTSAVE_5(s, __VA_ARGS__)
#define PTSAVE_7(s, x, ...) ptsave_value(s, x), PTSAVE_6(s, __VA_ARGS__)
#define PTSAVE_8(s, x, ...) ptsave_value(s, x), PTSAVE_7(s, __VA_ARGS__)
struct value *ptsave_fill(struct ptsave *s, struct value *to, struct value *const *v, size_t n);

/* An instance of a class; `state` is its __dict__. */
struct value *ptsave_object(struct ptsave *s, const char *module, const char *name,
			    struct value *state);
/* The result of callable(*args), to which `state` was given (NULL: none). */
struct value *ptsave_apply(struct ptsave *s, const char *module, const char *name,
			   struct value *args, struct value *state);

/* Add a storage.  Returns its number. */
size_t ptsave_storage(struct ptsave *s, struct ptsave_storage storage);

/* A contiguous tensor: elements of storage number `storage` from `offset` on. */
struct value *ptsave_view(struct ptsave *s, size_t storage, uint64_t offset, const uint64_t *shape,
			  unsigned ndim, bool requires_grad);

/* A tensor with a storage of its own. */
struct value *ptsave_tensor(struct ptsave *s, struct ptsave_storage storage, const uint64_t *shape,
			    unsigned ndim);

/* Bytes of host memory that ptsave_detach needs. */
size_t ptsave_device_bytes(const struct ptsave *s);

/*
 * Copy all storages on a device to `to`, host memory of the backend's host_alloc, in QUEUE_COPY,
 * and refer to the copies from now on.  Returns the end of the memory used.
 */
void *ptsave_detach(struct ptsave *s, void *to);

/*
 * Write the file and sync it.  It must not exist yet.  Like torch, it names its records after the
 * file without extension.  After an error there is no file.
 */
int ptsave_write(const struct ptsave *s, const struct value *root, const char *path,
		 struct errmsg *err);

#endif
