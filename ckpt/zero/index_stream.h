/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INDEX_STREAM_H
#define UCKPT_INDEX_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytes.h"
#include "ckpt/tensor/tensor.h"

struct arena;
struct bytebuf;
struct errmsg;

/* A field that is added to such a structure is lost between two mounts unless the
 * structure's function names it. */
#define INDEX_KNOWS(type, size)                                              \
	_Static_assert(sizeof(struct type) == (size) || sizeof(void *) != 8, \
		       #type " has a field that the index lacks")

/*
 * Bytes that are written or read: each function below writes a variable and
 * leaves it alone, or reads it.  So one function describes the form of a
 * structure in both directions.  Numbers are little-endian; a text is its length (32 bits) and its
 * bytes.
 *
 * Reading past the end gives zeros and sets `failed`, as does a value that no
 * writer gives.  It is enough to look at `failed` before what was read is used.
 */
struct index_stream {
	struct bytebuf *out; /* NULL while reading */
	struct span in;	     /* unread bytes */
	bool failed;
	bool nomem; /* the arena had no memory */
};

static inline bool index_reads(const struct index_stream *x)
{
	return !x->out;
}

void index_u8(struct index_stream *x, uint8_t *v);
void index_u32(struct index_stream *x, uint32_t *v);
void index_u64(struct index_stream *x, uint64_t *v);
void index_i64(struct index_stream *x, int64_t *v);
void index_bool(struct index_stream *x, bool *v);
void index_dtype(struct index_stream *x, enum dtype *v);

/* The number of things that take at least `size` bytes each, at most `most`. */
void index_count(struct index_stream *x, size_t *n, size_t size, size_t most);

/* Bytes; when read, they lie in the stream. */
void index_span(struct index_stream *x, struct span *s);

/* A string without NUL; when read, it lies in the arena. */
void index_name(struct index_stream *x, struct arena *a, const char **s);

/* `n` numbers; when read, they lie in the arena. */
void index_dims(struct index_stream *x, struct arena *a, const uint64_t **v,
		size_t n);

/* An array of `n` elements of `size` bytes: `v` itself while writing, zeroed
 * memory of the arena while reading; NULL if there is none. */
void *index_array(struct index_stream *x, struct arena *a, const void *v,
		  size_t n, size_t size);

/* What was read is not what a writer gives: -EBADMSG. */
int index_damaged(struct errmsg *err, const char *what);

/* The error of a stream that has failed. */
int index_failed(const struct index_stream *x, struct errmsg *err);

#endif
