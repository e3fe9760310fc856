/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STATE_H
#define UCKPT_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/ptfile.h"
#include "ckpt/format/tensor.h"

struct errmsg;
struct source;

/*
 * One state of one parameter, open for reading.  A file
 * zero/<parameter>/<state>.pt holds a dict with the tensor under `param`, a
 * bare tensor, or a number; a number is read as a tensor without dimensions.
 * Immutable once opened; reads are thread-safe.
 */
struct state {
	struct tensor t; /* dtype, shape and numel are public */
	/* The tensor is one-dimensional because the file does not record its
	 * shape (ZeRO-3). */
	bool flat;

	struct ptfile pt;
	char *path;	   /* the source's name, if state_close frees it */
	uint64_t at;	   /* offset of the storage in the file */
	uint64_t run;	   /* tensor_run(&t) */
	bool is_number;
	uint8_t number[16]; /* the number, if it is one */
};

/*
 * Take over the source of a file, whose name must outlive the state.  Returns
 * -EBADMSG if it holds neither a tensor nor a number, -ENOTSUP for tensors as
 * tensor_from_value, other errors as ptfile_open_source.  Call state_close after
 * success.
 */
int state_open_source(struct state *s, const struct source *src,
		      struct errmsg *err);

/* Take over a source that has the storage of `t` at offset `at`; the caller has
 * checked both. */
void state_init(struct state *s, const struct source *src,
		const struct tensor *t, uint64_t at);

/* Make a number with the value `bytes`. */
void state_init_number(struct state *s, enum dtype dtype, const uint8_t bytes[16]);

void state_close(struct state *s);

/* The end of the tensor's last element in the source; 0 for a number, which is not read from
 * there. */
uint64_t state_end(const struct state *s);

/* Read elements [first, first + n) in row-major order, in their own type. */
int state_read(const struct state *s, uint64_t first, size_t n, void *out,
	       struct errmsg *err);

#endif
