/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SAFETENSORS_H
#define UCKPT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include <stdbool.h>

#include "ckpt/base/arena.h"
#include "ckpt/format/tensor.h"

struct bytebuf;
struct errmsg;
struct source;

/* The library rejects longer headers. */
#define SAFETENSORS_HEADER_MAX 100000000u

/*
 * The header of a safetensors file: tensors in the order of their bytes, which follow each other
 * from the header to the end of the file.  A tensor of a type that torch lacks is an array of
 * bytes, DTYPE_OTHER.
 */
struct safetensors {
	struct arena arena;
	struct stored *v;
	size_t n;
	const char *sharding; /* JSON of torch's writer: the offsets of parts in their tensors;
	                       * or NULL */
};

/*
 * Read the header.  -EBADMSG for files that the library does not load and for
 * duplicate names, -E2BIG over a limit, -ENOTSUP for an unknown element type.
 * Messages name the source.
 */
int safetensors_read(struct safetensors *s, const struct source *src,
		     struct errmsg *err);
void safetensors_done(struct safetensors *s);

/* Can a file have tensors of this type, with so many dimensions? */
bool safetensors_knows(enum dtype dtype, unsigned ndim);

/*
 * Write the header of a safetensors file with these tensors, as the library's
 * save_file(..., metadata={"format": "pt"}) writes it, the eight bytes of its
 * length included.  The tensors' bytes follow it, without gaps, in the order
 * `order`, which has room for `n` numbers.  Their storages are not used.
 *
 * -ENOTSUP for names that are not UTF-8 and types that the format lacks,
 * -E2BIG, -ENOMEM.
 */
int safetensors_write_header(const struct stored *v, size_t n, size_t *order, struct bytebuf *out,
			     struct errmsg *err);

#endif
