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

/* Read `width` pieces at once, and more from files that keep readers waiting, but no more than
 * `most` in memory. */
int upload_new(struct upload **out, struct backend *b, unsigned width, unsigned most,
	       struct errmsg *err);

/*
 * Add bytes [off, off + len) of a file, elements of type `dtype`, which upload_finish stores at
 * `to` as float32.  The file must stay open until then.  Many short ranges with adjacent
 * destinations cost little more than a long one.  -EBADMSG if the file ends before.
 */
int upload_add(struct upload *q, const struct source *file, uint64_t off, size_t len,
	       enum dtype dtype, float *to, struct errmsg *err);

/* Upload all that was added, after the computation queued so far.  Fails if a file was written to
 * since it was opened.  Returns the first error; after it nothing more is read. */
int upload_finish(struct upload *q, struct errmsg *err);

/* `q` may be NULL. */
void upload_free(struct upload *q);

#endif
