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
 * a node: a tuple, a list, a dict, or an object of one of the classes below, which has its
 * attributes in their order.
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

/* A file may take this many bytes of memory for each of its own, but at least the second number. */
#define DCP_MEMORY_PER_BYTE 4
#define DCP_MEMORY_LEAST (16u << 20)

/*
 * Read the pickle at the beginning of a file, and nothing after it.  Nothing is called, and
 * attributes that are not named above are dropped.  Sizes and offsets are kept in `keep`;
 * dcp_unpickled_done frees everything else.  -EBADMSG malformed or hostile, -ENOTSUP an opcode that
 * is not read, -E2BIG over a limit, -ENOMEM; as source_read.
 */
int dcp_unpickle(struct dcp_pickle *p, const struct source *src, struct arena *keep,
		 struct errmsg *err);
void dcp_unpickled_done(struct dcp_pickle *p);

/* Attribute `i` of an object of that class; 0 if it is none. */
pickle_word dcp_attribute(pickle_word w, enum dcp_class c, size_t i);

/* The entries of a dict; empty for anything else. */
struct dcp_pairs {
	const pickle_word *v; /* keys and values alternate */
	size_t n;             /* pairs */
};
bool dcp_pairs(pickle_word w, struct dcp_pairs *out);

/* The elements of a tuple or a list, or the keys and values of a dict, which alternate; `*n` is
 * 0 and the result false for anything else.  A tuple of sizes has none. */
bool dcp_elements(pickle_word w, const pickle_word **v, size_t *n);

/* A tuple of non-negative numbers: sizes, or offsets. */
bool dcp_sizes(pickle_word w, const uint64_t **v, size_t *n);

/* A number that is not negative. */
bool dcp_count_of(pickle_word w, uint64_t *out);

/* Any number; very large ones are cut. */
bool dcp_int_of(pickle_word w, int64_t *out);

/* A text without NUL. */
bool dcp_text_of(const struct dcp_pickle *p, pickle_word w, struct value_str *out);

/* The type that a global such as torch.float32 names. */
enum dtype dcp_dtype_of(pickle_word w);

#endif
