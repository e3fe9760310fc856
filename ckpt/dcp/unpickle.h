/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_UNPICKLE_H
#define UCKPT_DCP_UNPICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/tensor/tensor.h"

struct errmsg;
struct source;

/*
 * Of a value of the metadata's pickle: what dcp_unpickle has kept of it.  A number, a
 * type, the place of a text, or a node: a tuple, a list, a dict, or an object of one of
 * the classes below, which has its attributes in their order.
 */
typedef uint64_t dcp_word;

enum dcp_class {
	DCP_NO_CLASS,
	DCP_SIZE,
	DCP_ORDERED,
	DCP_ROOT,       /* state_dict_metadata, planner_data, storage_data */
	DCP_TENSOR,     /* properties, size, chunks */
	DCP_PROPERTIES, /* dtype */
	DCP_CHUNK,      /* offsets, sizes */
	DCP_INDEX,      /* fqn, offset */
	DCP_INFO, /* relative_path, offset, length, transform_descriptors */
	DCP_CLASSES
};

struct dcp_text {
	const char *p; /* not terminated */
	size_t len;
};

struct dcp_pickle {
	dcp_word root;
	uint8_t *bytes; /* of the file, as far as they were read */
	size_t have;    /* bytes */
	size_t budget;  /* bytes of memory that may still be kept of it */
	struct arena a; /* nodes */
};

/* A file may take this many bytes of memory for each of its own, and the second number
 * of them at least. */
#define DCP_MEMORY_PER_BYTE 4
#define DCP_MEMORY_LEAST (16u << 20)

/*
 * Read the pickle at the beginning of a file, and no more than it.  Nothing is called, and
 * attributes without a name above are dropped.  Sizes and offsets are in `keep`, whatever
 * else goes with dcp_unpickled_done.  -EBADMSG malformed or hostile, -ENOTSUP an opcode
 * that is not read, -E2BIG over a limit, -ENOMEM; as source_read.
 */
int dcp_unpickle(struct dcp_pickle *p, const struct source *src,
		 const char *file, struct arena *keep, struct errmsg *err);
void dcp_unpickled_done(struct dcp_pickle *p);

/* The attributes of an object of that class; NULL if it is none. */
const dcp_word *dcp_attributes(dcp_word w, enum dcp_class c);

bool dcp_is_dict(dcp_word w);

/* The elements of a tuple or a list, or the keys and values of a dict, by turns; `*n` is 0
 * and the result false for anything else.  A tuple of sizes has none. */
bool dcp_elements(dcp_word w, const dcp_word **v, size_t *n);

/* A tuple of numbers that are not negative: sizes, or offsets. */
bool dcp_sizes(dcp_word w, const uint64_t **v, size_t *n);

/* A number that is not negative. */
bool dcp_count_of(dcp_word w, uint64_t *out);

/* Any number; very large ones are cut. */
bool dcp_int_of(dcp_word w, int64_t *out);

/* A text without NUL. */
bool dcp_text_of(const struct dcp_pickle *p, dcp_word w, struct dcp_text *out);

/* The type that a global such as torch.float32 names. */
enum dtype dcp_dtype_of(dcp_word w);

#endif
