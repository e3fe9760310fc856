/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STATE_H
#define UCKPT_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/ptfile.h"
#include "ckpt/tensor/tensor.h"

struct errmsg;
struct source;

/*
 * A state of a parameter, open for reading.  In a file
 * zero/<parameter>/<state>.pt that is a dict with the tensor under `param`, a
 * bare tensor, or a number, which is read like a tensor without dimensions.
 * Immutable once opened; reads are thread-safe.
 */
struct state {
	struct tensor t; /* dtype, shape and numel are for everybody */
	/* All elements in a row: ZeRO-3's files do not tell the shape. */
	bool flat;

	struct ptfile pt;
	char *path;	   /* its name, if it is ours */
	uint64_t at;	   /* of the storage, in the file */
	unsigned outer;	   /* dimensions that are walked; the others are one */
	uint64_t run;	   /* ... run of so many elements */
	bool is_number;
	uint8_t number[8]; /* if so */
};

/*
 * Open a file, or take over a source (whose name must outlive the state).
 * -EBADMSG if it holds none of these things, -ENOTSUP for tensors as
 * tensor_from_value, or errors as ptfile_open.  On failure nothing needs
 * closing.
 */
int state_open(struct state *s, const char *path, struct errmsg *err);
int state_open_source(struct state *s, const struct source *src,
		      struct errmsg *err);

/* Take over a source that has the storage of `t` at `at`, both checked. */
void state_init(struct state *s, const struct source *src,
		const struct tensor *t, uint64_t at);

void state_close(struct state *s);

/* Elements [first, first + n) in row-major order, as they are in the file. */
int state_read(const struct state *s, uint64_t first, size_t n, void *out,
	       struct errmsg *err);

#endif
