/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_MKPT_H
#define TESTS_MKPT_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytes.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"

/*
 * Makes .pt files for tests: a graph of values, the bytes of its storages, and
 * torch's container around both.  Any failure ends the test program.
 * Zero-initialised it is empty and valid.
 */
struct mkpt {
	struct arena arena;
	struct mkpt_storage {
		uint8_t *bytes; /* owned */
		uint64_t len;
	} * storages; /* their keys are their numbers */
	size_t nstorages;
};

void mkpt_done(struct mkpt *m);

/* Create values.  They live as long as `m`; strings are borrowed. */
struct value *mkpt_none(struct mkpt *m);
struct value *mkpt_int(struct mkpt *m, int64_t i);
struct value *mkpt_bool(struct mkpt *m, bool b);
struct value *mkpt_float(struct mkpt *m, double f);
struct value *mkpt_str(struct mkpt *m, const char *s);
struct value *mkpt_global(struct mkpt *m, const char *module, const char *name);
struct value *mkpt_dict(struct mkpt *m);
struct value *mkpt_list(struct mkpt *m);

/* Make a tuple of the `n` following values. */
struct value *mkpt_tuple(struct mkpt *m, size_t n, ...);

/* Calls callable(*args), and cls.__new__(cls) with a state. */
/* A tensor with an attribute, as in ZeRO-3, which wraps the tensor in another call. */
struct value *mkpt_attribute(struct mkpt *m, struct value *tensor,
			     const char *name, struct value *v);
struct value *mkpt_reduce(struct mkpt *m, struct value *callable,
			  struct value *args);
struct value *mkpt_object(struct mkpt *m, const char *module, const char *name,
			  struct value *state);
struct value *mkpt_ordered_dict(struct mkpt *m);
struct value *mkpt_size(struct mkpt *m, const uint64_t *shape, unsigned ndim);

/* Append to a list or tuple.  Set a key of a dict or OrderedDict, in place if it exists; a NULL `v`
 * removes it.  mkpt_set_new does not search for `key`, which takes long in a dict of a million
 * keys. */
void mkpt_add(struct mkpt *m, struct value *seq, struct value *v);
void mkpt_set_new(struct mkpt *m, struct value *dict, const char *key,
		  struct value *v);
void mkpt_set(struct mkpt *m, struct value *dict, const char *key,
	      struct value *v);
void mkpt_set_key(struct mkpt *m, struct value *dict, struct value *key,
		  struct value *v);

/* Add a storage with a copy of `len` bytes; return its key. */
const char *mkpt_add_storage(struct mkpt *m, const void *bytes, uint64_t len);

/* Make a contiguous tensor with its own storage. */
struct value *mkpt_tensor(struct mkpt *m, enum dtype dtype,
			  const uint64_t *shape, unsigned ndim,
			  const void *bytes);

/* Make a tensor of the first `numel` elements of a flat storage of `capacity` elements. */
struct value *mkpt_flat(struct mkpt *m, enum dtype dtype, uint64_t numel,
			uint64_t capacity, bool requires_grad,
			const void *bytes);

/* Append the file that torch.save(root) would have written as <prefix>.pt. */
void mkpt_emit(const struct mkpt *m, const struct value *root,
	       const char *prefix, struct bytebuf *out);

/* The same for a given pickle, with the storages of `m` (may be NULL) in their order. */
void mkpt_emit_pickle(const struct mkpt *m, struct span pickle,
		      const char *prefix, struct bytebuf *out);

/* Write a file; `path` is created or replaced. */
void mkpt_save(const char *path, const void *bytes, size_t len);

/* Read a whole file; bytebuf_done frees it. */
struct bytebuf mkpt_load(const char *path);

#endif
