/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_UPLOAD_H
#define UCTRAIN_UPLOAD_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/tensor.h"

struct backend;
struct errmsg;
struct source;

/*
 * Uploads of tensor elements from files to a device, in large pieces, with reads and copies of
 * different pieces overlapping.  If device memory is host memory, a piece is read directly to its
 * destination.
 */
struct upload;

/* Start with `width` concurrent reads, and go up to `most` while more reads make the source faster
 * (latency.h). */
int upload_new(struct upload **out, struct backend *b, unsigned width, unsigned most,
	       struct errmsg *err);

/*
 * Queue bytes [off, off + len) of a file, elements of type `dtype`, to be stored at `to` as
 * float32 before upload_finish returns.  The caller may close the source after this call or, if it
 * has no descriptor, after upload_finish.  Reads fail if the file is replaced.  This call, a later
 * one or upload_finish returns the first error of any piece; after an error nothing more is read.
 */
int upload_add(struct upload *q, const struct source *file, uint64_t off, size_t len,
	       enum dtype dtype, float *to, struct errmsg *err);

/* Wait for all pieces.  Returns the first error. */
int upload_finish(struct upload *q, struct errmsg *err);

/* Discard pieces in progress.  `q` may be NULL. */
void upload_free(struct upload *q);

#endif
