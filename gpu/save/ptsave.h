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

/* The elements of a storage, where they are until the file is written. */
struct ptsave_storage {
	enum dtype dtype;
	uint64_t numel;
	const void *p;        /* borrowed */
	struct backend *from; /* whose memory `p` is; NULL: the host's */
	bool wide; /* elements are float32 there, that dtype can hold */
};

/*
 * A file of torch.save in the making: Python's objects, and the tensors'
 * storages in the memory of host or device.  Zero initialised it is empty.
 *
 * The functions that make values never fail to return one: when memory runs
 * out that is remembered, and ptsave_write says so.  Values live as long as
 * the file; strings are borrowed.
 */
struct ptsave {
	struct arena arena;
	bool failed;
	struct value *spare; /* returned when there is no memory */
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
/* An object of a class, with what its __dict__ holds. */
struct value *ptsave_object(struct ptsave *s, const char *module,
			    const char *name, struct value *state);
/* callable(arg) */
struct value *ptsave_call(struct ptsave *s, const char *module,
			  const char *name, struct value *arg);

/* Append to a tuple or list; set a new key of a dict. */
void ptsave_add(struct ptsave *s, struct value *seq, struct value *v);
void ptsave_set(struct ptsave *s, struct value *dict, const char *key,
		struct value *v);
void ptsave_set_index(struct ptsave *s, struct value *dict, int64_t key,
		      struct value *v);

/* A number for the storage. */
size_t ptsave_storage(struct ptsave *s, const struct ptsave_storage *storage);

/* A contiguous tensor: elements of storage number `storage` from `offset`
 * on. */
struct value *ptsave_tensor(struct ptsave *s, size_t storage, uint64_t offset,
			    const uint64_t *shape, unsigned ndim,
			    bool requires_grad);

/* Bytes of memory of the host that ptsave_detach needs. */
size_t ptsave_device_bytes(const struct ptsave *s);

/*
 * Let the file no longer refer to a device: what it has there is copied to
 * `to`, which is memory of the backend's host_alloc, in QUEUE_COPY.  Returns
 * where the rest of that memory begins.
 */
void *ptsave_detach(struct ptsave *s, void *to);

/*
 * Write the file, which must not exist yet, to the medium.  Its record prefix
 * is that of torch, the name without its extension.  On failure there is none.
 */
int ptsave_write(struct ptsave *s, const struct value *root, const char *path,
		 struct errmsg *err);

#endif
