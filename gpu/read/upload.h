/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_INTAKE_H
#define UCTRAIN_INTAKE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/tensor/tensor.h"

struct backend;
struct errmsg;
struct source;

/*
 * Elements of tensors on their way from files to a device.  They go in large
 * pieces, several at a time: some are read while others are copied and others
 * are asked for.  Where the device's memory is the host's, or the device has a
 * reader of its own, a piece is read straight to its place.
 */
struct intake;

/* At most `width` reads at once. */
int intake_new(struct intake **out, struct backend *b, unsigned width,
	       struct errmsg *err);

/*
 * Bytes [off, off + len) of a file, elements of type `dtype`, shall be at `to`
 * as float32, some time before intake_finish returns.  The source may be
 * closed afterwards.  What one piece fails with, this or a later call returns,
 * or intake_finish; from then on nothing more is read.
 */
int intake_add(struct intake *q, const struct source *file, uint64_t off,
	       size_t len, enum dtype dtype, float *to, struct errmsg *err);

/* All is there, or this is the first failure. */
int intake_finish(struct intake *q, struct errmsg *err);

/* How many bytes the device's own reader has brought, and what it failed with
 * first ("" if with nothing), for which another stood in. */
uint64_t intake_gds(const struct intake *q, struct errmsg *failure);

/* What has not arrived is given up. */
void intake_free(struct intake *q);

#endif
