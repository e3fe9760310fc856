/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_PTSAVE_H
#define UCTRAIN_PTSAVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/tensor/tensor.h"

struct backend;
struct errmsg;
struct value;

/* A storage, which stays where it is until the file is written. */
struct ptsave_storage {
	enum dtype dtype;
	uint64_t numel;
	const void *p;        /* borrowed */
	struct backend *from; /* the owner of the memory at `p`; NULL: host
			       * memory */
	bool wide; /* float32 in memory, converted to dtype when written */
};

/*
 * A file of torch.save being built: Python objects, and tensor storages in host
 * or device memory.  Zero-initialised it is empty.
 *
 * The functions that make values never return NULL: an allocation failure is
 * remembered and reported by ptsave_write.  Values live as long as the file;
 * strings are borrowed.
 */
struct ptsave {
	struct arena arena;
	bool failed;
	struct value *spare; /* returned when out of memory */
	struct ptsave_storage *storages;
	size_t nstorages, cap;
};

int ptsave_init(struct ptsave *s, struct errmsg *err);
void ptsave_done(struct ptsave *s);

struct value *ptsave_none(struct ptsave *s);
struct value *ptsave_bool(struct ptsave *s, bool b);
struct value *ptsave_int(struct ptsave *s, int64_t i);
struct value *ptsave_float(struct ptsave *s, double f);
struct value *ptsave_str(struct ptsave *s, const char *text);
struct value *ptsave_global(struct ptsave *s, const char *module,
			    const char *name);
struct value *ptsave_tuple(struct ptsave *s);
struct value *ptsave_list(struct ptsave *s);
struct value *ptsave_dict(struct ptsave *s);
struct value *ptsave_ordered_dict(struct ptsave *s);
struct value *ptsave_size(struct ptsave *s, const uint64_t *shape,
			  unsigned ndim);
/* An instance of a class; `state` is its __dict__. */
struct value *ptsave_object(struct ptsave *s, const char *module,
			    const char *name, struct value *state);
/* The result of callable(*args), to which `state` was given (NULL: none). */
struct value *ptsave_apply(struct ptsave *s, const char *module,
			   const char *name, struct value *args,
			   struct value *state);
/* The result of callable(arg). */
struct value *ptsave_call(struct ptsave *s, const char *module,
			  const char *name, struct value *arg);

/* Append to a tuple or list; add a new key to a dict. */
void ptsave_add(struct ptsave *s, struct value *seq, struct value *v);
void ptsave_set(struct ptsave *s, struct value *dict, const char *key,
		struct value *v);
void ptsave_set_index(struct ptsave *s, struct value *dict, int64_t key,
		      struct value *v);

/* Add a storage.  Returns its number. */
size_t ptsave_storage(struct ptsave *s, const struct ptsave_storage *storage);

/* A contiguous tensor: elements of storage number `storage` from `offset`
 * on. */
struct value *ptsave_tensor(struct ptsave *s, size_t storage, uint64_t offset,
			    const uint64_t *shape, unsigned ndim,
			    bool requires_grad);

/* Bytes of host memory that ptsave_detach needs. */
size_t ptsave_device_bytes(const struct ptsave *s);

/*
 * Copy all storages on a device to `to`, host memory of the backend's
 * host_alloc, in QUEUE_COPY, and refer to the copies from now on.  Returns the
 * end of the memory used.
 */
void *ptsave_detach(struct ptsave *s, void *to);

/*
 * Write the file and sync it.  It must not exist yet.  Like torch, it names its
 * records after the file without extension.  After an error there is no file.
 */
int ptsave_write(struct ptsave *s, const struct value *root, const char *path,
		 struct errmsg *err);

#endif
