/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_METADATA_H
#define UCKPT_DCP_METADATA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/format/names.h"
#include "ckpt/format/tensor.h"

struct dcp_param;
struct errmsg;
struct uckpt;
struct value;

/* Limits: 60 to 130 bytes describe a chunk, so these admit at least four million. */
#define DCP_METADATA_MAX (512u << 20)
#define DCP_PATH_MAX 32 /* elements of a key's path */

/* A block of a tensor's elements, or an object, in a record.  A record is a whole torch.save file
 * within a file. */
struct dcp_chunk {
	const uint64_t *offset, *size; /* in each dimension of the entry */
	uint64_t numel;
	uint32_t file;         /* number of the file */
	_Atomic bool strided;  /* its elements are not row-major */
	uint64_t at, len;      /* of the record, in bytes */
	uint64_t skip, of;     /* elements of the record: before the chunk, and in total; if `of` is
			        * 0, the chunk is the whole record */
	_Atomic uint32_t crc;  /* CRC-32 of the elements, from the record; 0: none */
	_Atomic uint64_t data; /* offset of the elements in the file, in bytes; 0: `data` and `crc`
			        * are not known yet */
	const struct stored *view; /* for a strided chunk that is not in a record; or NULL */
};

/* An entry of the state dict: a tensor, or any other object. */
struct dcp_entry {
	const char *key;   /* must be first: array_by_text */
	const char **path; /* path to it in nested dicts and lists */
	unsigned depth;    /* elements of the path, at least 1 */
	const char *name;  /* name in the chosen model; NULL: not one of its tensors */
	const struct dcp_param *owner; /* for a tensor of the model: the optimizer's parameter, or
				        * NULL */
	bool is_tensor;
	bool is_buffer;   /* probably a buffer, because every rank has all of it; or dcp_extras.c
			   * has decided */
	bool is_layer;    /* one layer of a stack: records have one more dimension, of size 1 */
	enum dtype dtype; /* DTYPE_OTHER: an unknown type */
	unsigned ndim;
	const uint64_t *shape;
	uint64_t numel;
	struct dcp_chunk *chunks; /* for a tensor: sorted by first element; for an object: one, or
				   * none */
	size_t nchunks;
	struct value *value; /* of an object that has been read, or NULL */
};

/* One or two directories' metadata. */
struct dcp_metadata {
	struct arena arena;
	struct dcp_entry *entries; /* in the order of the saved dicts */
	size_t nentries, cap;
	const char **files; /* paths, by file number; includes the metadata's */
	size_t nfiles, files_cap;
	struct hashtab by_path;
	const char *refused; /* reason why the optimizer's entries cannot be read; or NULL */
};

/*
 * Read the metadata of a directory, and add its entries.  Opens nothing else, and checks that
 * chunks cover their tensors.  -EBADMSG for a damaged or hostile file, which the message names;
 * -ENOTSUP for unsupported transforms and formats; -E2BIG, -ENOMEM, or as io_open.
 */
int dcp_metadata_add(struct dcp_metadata *m, struct uckpt *u, const char *dir, struct errmsg *err);

/* Return the number of a file, adding it if it is new; -1 when memory runs out. */
int64_t dcp_metadata_add_file(struct dcp_metadata *m, const char *path);

/* List the entries of a checkpoint, sorted by key; the caller frees the list.  NULL when memory
 * runs out. */
struct dcp_key {
	const char *key; /* must be first: array_by_text */
	struct dcp_entry *entry;
} *dcp_entries_by_key(const struct dcp_metadata *m);

/* Does a chunk's record consist of its elements only, in a safetensors file? */
bool dcp_is_raw(const struct dcp_entry *t, const struct dcp_chunk *c);

/* Do two tensors have the same shape? */
bool dcp_same_shape(const struct dcp_entry *a, const struct dcp_entry *b);

void dcp_metadata_done(struct dcp_metadata *m);

/*
 * Sort the chunks of a tensor and check that each element is in exactly one of them. torch checks
 * this when it saves on several ranks, but never when it loads.  -EBADMSG if not, -E2BIG for chunks
 * that take too long to compare; `file` is for messages.
 */
int dcp_chunks_check(struct dcp_entry *t, const char *file, struct errmsg *err);

/*
 * Give a flattened state the shape of its parameter.  Megatron-Core saves ShardedTensors with a
 * flattened_range so that each row has the elements of a block: [X/x, Y/y, x*y] for blocks of [x,
 * y] becomes [X, Y], and a range of a row becomes several chunks.  Other states stay unchanged.
 * -ENOMEM; errors of dcp_chunks_check.
 */
int dcp_unflatten(struct dcp_metadata *m, struct dcp_entry *t, const struct dcp_entry *param,
		  const char *file, struct errmsg *err);

/* Return the chunk with elements that begins at this place of a checked tensor, or NULL. */
struct dcp_chunk *dcp_chunk_find(const struct dcp_entry *t, const uint64_t *offset);

/* Places of a chunk's elements in its tensor.  Both are row-major, so elements have the same order
 * in both. */

/* Count a chunk's elements before element `e` of the tensor; `e` may be the tensor's numel. */
uint64_t dcp_chunk_before(const struct dcp_entry *t, const struct dcp_chunk *c, uint64_t e);

/* Find the place in the tensor of element `e` of the chunk.  Returns how many elements from there
 * on are contiguous in both. */
uint64_t dcp_chunk_place(const struct dcp_entry *t, const struct dcp_chunk *c, uint64_t e,
			 uint64_t *at);

#endif
