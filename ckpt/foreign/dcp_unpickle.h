/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_UNPICKLE_H
#define UCKPT_DCP_UNPICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/format/machine.h"
#include "ckpt/format/tensor.h"

struct errmsg;
struct source;

/*
 * The word of a value of the metadata's pickle is a number, a type, the place of a text, or
 * a node: a tuple, a list, a dict, or an object of one of the classes below, with the attributes in
 * the order listed.
 */
enum dcp_class {
	DCP_NO_CLASS,
	DCP_SIZE,
	DCP_ORDERED,
	DCP_ROOT,       /* state_dict_metadata, planner_data, storage_data */
	DCP_TENSOR,     /* properties, size, chunks */
	DCP_PROPERTIES, /* dtype */
	DCP_CHUNK,      /* offsets, sizes */
	DCP_INDEX,      /* fqn, offset */
	DCP_INFO,       /* relative_path, offset, length, transform_descriptors */
	DCP_CLASSES
};

struct dcp_pickle {
	pickle_word root;
	struct pickle_bytes in;
	size_t budget;  /* bytes of memory that may still be kept */
	struct arena a; /* nodes */
};

/* Limit of memory per byte of the file; the second number is the least limit. */
#define DCP_MEMORY_PER_BYTE 4
#define DCP_MEMORY_LEAST (16u << 20)

/*
 * Read the pickle at the beginning of a file, and nothing after it.  No callable is executed, and
 * attributes that are not named above are dropped.  Sizes and offsets are kept in `keep`;
 * dcp_unpickled_done frees everything else.  -EBADMSG malformed or hostile, -ENOTSUP an unsupported
 * opcode, -E2BIG over a limit, -ENOMEM; as source_read.
 */
int dcp_unpickle(struct dcp_pickle *p, const struct source *src, struct arena *keep,
		 struct errmsg *err);
void dcp_unpickled_done(struct dcp_pickle *p);

/* Return attribute `i` of an object of that class; 0 if it is of another class. */
pickle_word dcp_attribute(pickle_word w, enum dcp_class c, size_t i);

/* The entries of a dict; empty for anything else. */
struct dcp_pairs {
	const pickle_word *v; /* keys and values alternate */
	size_t n;             /* pairs */
};
bool dcp_pairs(pickle_word w, struct dcp_pairs *out);

/* The elements of a tuple or a list, or the keys and values of a dict, which alternate; for
 * anything else `*n` is 0 and the result is false, also for a tuple of sizes. */
bool dcp_elements(pickle_word w, const pickle_word **v, size_t *n);

/* Get a tuple of non-negative numbers: sizes or offsets. */
bool dcp_sizes(pickle_word w, const uint64_t **v, size_t *n);

/* Get a non-negative number. */
bool dcp_count_of(pickle_word w, uint64_t *out);

/* Get a number; very large ones are clamped. */
bool dcp_int_of(pickle_word w, int64_t *out);

/* Get a text without NUL. */
bool dcp_text_of(const struct dcp_pickle *p, pickle_word w, struct value_str *out);

/* Return the type that a global such as torch.float32 names. */
enum dtype dcp_dtype_of(pickle_word w);

#endif
