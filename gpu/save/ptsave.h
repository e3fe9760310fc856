/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_PTSAVE_H
#define UCTRAIN_PTSAVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"
#include "ckpt/vfile/file_layout.h"

struct backend;
struct errmsg;

/* A storage.  Its memory must not move until the file is written. */
struct ptsave_storage {
	enum dtype dtype;
	uint64_t numel;
	const void *p;        /* borrowed */
	struct backend *from; /* owner of the memory at `p`; NULL: host memory */
	bool wide;            /* float32 in memory, converted to dtype when written */
};

/*
 * A file of torch.save being built, with the mount's layout: Python objects, and tensor storages in
 * host or device memory.  Empty when zero-initialised.
 *
 * Values and strings that are copied live in the layout's arena; other strings are borrowed.  An
 * allocation failure is recorded there and reported by ptsave_write: functions that make a value
 * then return NULL, and accept NULL.
 */
struct ptsave {
	struct file_layout layout;
	struct ptsave_storage *storages; /* of the layout's new storages */
	size_t nstorages, cap;
};

static inline void ptsave_done(struct ptsave *s)
{
	layout_done(&s->layout);
}

/* Add a storage.  Returns its number. */
size_t ptsave_storage(struct ptsave *s, struct ptsave_storage storage);

/* A contiguous tensor: elements of storage number `storage` from `offset` on. */
struct value *ptsave_view(struct ptsave *s, size_t storage, uint64_t offset, const uint64_t *shape,
			  unsigned ndim, bool requires_grad);

/* A tensor with its own storage. */
struct value *ptsave_tensor(struct ptsave *s, struct ptsave_storage storage, const uint64_t *shape,
			    unsigned ndim);

/* Bytes of host memory that ptsave_detach needs. */
size_t ptsave_device_bytes(const struct ptsave *s);

/*
 * Copy all storages on a device to `to`, host memory of the backend's host_alloc, on QUEUE_COPY,
 * and refer to the copies from now on.  Returns the end of the memory used.
 */
void *ptsave_detach(struct ptsave *s, void *to);

/*
 * Write the file and sync it.  It must not exist yet.  Like torch, it names its records after the
 * file without extension.  An error leaves no file.
 */
int ptsave_write(struct ptsave *s, const struct value *root, const char *path, struct errmsg *err);

#endif
