/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_UNPICKLE_IMPL_H
#define UCKPT_DCP_UNPICKLE_IMPL_H

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/dcp/unpickle.h"
#include "ckpt/pickle/pickle.h"

#define RECYCLED_MAX 5 /* words of tuples that are used again, but for one */

/* The lowest bits of a word.  0 is none: a memo that was never stored. */
enum tag { NONE, INT, TEXT, GLOBAL, NODE, ANY };

#define TAG_BITS 3
#define AT_BITS 30 /* of a text's place in the file */
#define TAG(w) ((enum tag)((w)&7))
#define ANYTHING ((dcp_word)ANY)

enum kind { TUPLE, SIZES, LIST, DICT, OBJECT };

struct node {
	uint8_t kind;
	uint8_t class;
	bool shared;   /* it may be met again */
	uint32_t memo; /* its number in the memo + 1, or 0 */
	dcp_word v[]; /* of what has no fixed size: a number of words, the room for them, and
		       * where they are; of tuples, the number first */
};

enum { N, CAP, AT, GROWING };

struct machine {
	struct dcp_pickle *p;
	const struct source *src;
	const char *file;
	struct arena *keep;
	struct errmsg *err;
	int rc;     /* the first error */
	size_t pos; /* of the next byte */
	size_t op;  /* of the opcode being executed */
	dcp_word *stack, *memo;
	size_t depth, stack_cap, memo_len, memo_cap;
	size_t marks[PICKLE_MARKS_MAX], nmarks;
	uint8_t *slab; /* free bytes of the last one */
	size_t slab_left;
	struct node *dicts, *tuples[RECYCLED_MAX]; /* to be used again; v[0]: the next */
	struct node *empty;			   /* the tuple without elements */
	size_t kept;                   /* bytes that were in `keep` before */
};

#define FAIL(m, error, fmt, ...)                                     \
	((m)->rc = (m)->rc                                           \
			   ?: errmsg_set((m)->err, error,            \
					 "%s: metadata+0x%zx: " fmt, \
					 (m)->file, (m)->op, ##__VA_ARGS__))

/* The next bytes of the file; NULL, or 0, after an error. */
const uint8_t *unpickle_take(struct machine *m, uint64_t n);
uint64_t unpickle_take_uint(struct machine *m, unsigned width);

/* Make room in the stack or the memo.  False after an error. */
bool unpickle_grow(struct machine *m, dcp_word **v, size_t *cap, size_t want);

/* Allot a node with so many words; sizes are kept.  NULL after an error. */
struct node *unpickle_node(struct machine *m, enum kind kind, size_t words);

/* A node that has been used up is used again, unless it may be met another time. */
void unpickle_recycle(struct machine *m, dcp_word w);
struct node *unpickle_take_recycled(struct node **list);

/* Append words to a list or a dict. */
void unpickle_extend(struct machine *m, struct node *x, const dcp_word *v,
		     size_t n);

/* As dcp_text_of, of a text that may have a NUL. */
bool unpickle_text(const struct dcp_pickle *p, dcp_word w, struct dcp_text *out);

/* Bytes of memory that the file may take. */
size_t unpickle_most(const struct dcp_pickle *p);

static inline struct node *node_of(dcp_word w)
{
	return TAG(w) == NODE ? (struct node *)(uintptr_t)(w - NODE) : NULL;
}

static inline dcp_word word_of(const struct node *x)
{
	return (dcp_word)(uintptr_t)x + NODE;
}

#endif
