/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PTFILE_H
#define UCKPT_PTFILE_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/source.h"
#include "ckpt/format/legacy.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/zip.h"

struct errmsg;
struct value;

/*
 * A file that torch.save wrote, opened for reading: its object as a graph of
 * values, and the offsets of its storages, for both of torch's containers.  Tensor
 * data is not read.  Immutable once opened.
 */
struct ptfile {
	struct source src;
	/* The same source for small reads.  Both ends of it are in memory: the formats have many
	 * small records there, and a store may take milliseconds for each. */
	struct source ends;
	uint8_t *head, *tail;
	uint64_t head_end, tail_begin; /* the bytes in `head` and `tail` */
	bool is_zip;
	struct zip zip;	      /* empty in the other container */
	struct legacy legacy; /* empty in a zip file */
	struct arena arena; /* owns `root` */
	struct value *root;
};

/* Take over an open source.  Messages name the file.  -ENOTSUP for big-endian files.  On
 * failure nothing needs closing, the source included. */
int ptfile_open_source(struct ptfile *pt, const struct source *src,
		       struct errmsg *err);
void ptfile_close(struct ptfile *pt);

/*
 * Get the tensor described by `v`: its view, and at `*storage` the offset in the file of element 0
 * of its storage, which has been checked to hold `storage_numel` elements.  `name` is for messages.
 */
int ptfile_tensor(const struct ptfile *pt, const struct value *v,
		  const char *name, struct tensor *t, uint64_t *storage,
		  struct errmsg *err);

/* As ptfile_tensor, for a contiguous tensor of a known type: its elements begin at `*at` in the
 * file.  -ENOTSUP for other tensors. */
int ptfile_run(const struct ptfile *pt, const struct value *v, const char *name,
	       struct tensor *t, uint64_t *at, struct errmsg *err);

/* Get the number that a tensor of one element holds, as Python's item() returns it, in `a`.
 * -ENOTSUP for other tensors. */
int ptfile_number(const struct ptfile *pt, const struct value *v, const char *name,
		  struct arena *a, struct value **out, struct errmsg *err);

/* As ptfile_number, for a value that may be a number already, or a tuple or list of numbers and
 * tensors: a learning rate of a captured graph, betas.  `*v` becomes a value without tensors, in
 * `a`. */
int ptfile_numbers(const struct ptfile *pt, const char *name, struct arena *a,
		   struct value **v, struct errmsg *err);

/* Return the CRC-32 that the zip directory has of a storage; 0 if there is none. */
uint32_t ptfile_storage_crc(const struct ptfile *pt, const char *key);

/* Return the offset in the file of a storage of `bytes` bytes with key `key`. */
int ptfile_storage(const struct ptfile *pt, const char *key, uint64_t bytes,
		   uint64_t *offset, struct errmsg *err);

#endif
