/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_QKV_H
#define UCKPT_QKV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct errmsg;
struct uckpt;

/*
 * torchtitan's models with one projection for queries, keys and values (FusedQKVLinear of
 * models/common/attention.py) save three weights, wq, wk and wv, like models without it, but the
 * optimizer's states of the single parameter wqkv.  For each head of keys, wqkv has the rows of the
 * query heads that share it, then the key's, then the value's.  Biases are alike.
 */
#define QKV_PARTS 3u
#define QKV_FUSED "wqkv"
extern const char *const qkv_parts[QKV_PARTS];

struct qkv {
	uint64_t heads;             /* of keys */
	uint64_t rows[QKV_PARTS];   /* rows of each weight per head */
	uint64_t before[QKV_PARTS]; /* offset of these rows in the head's */
	uint64_t rows_of;           /* rows of a head in total */
};

/* Is `part` the last component but one of a name? Sets the length of what precedes it. */
bool qkv_is(const char *name, const char *part, size_t *prefix);

/* Return a name with another part after its first `prefix` bytes; NULL when memory runs out. */
const char *qkv_name(struct arena *a, const char *name, size_t prefix, const char *part);

/* Return the name that the norm of each head's queries would have; NULL if there can be none. */
const char *qkv_norm_name(struct arena *a, const char *name, size_t prefix);

/* Return the rows of a head: the option's value, or the width of that norm, whose shape is `norm`;
 * 0 if they are unknown.  `ndim` is 0 if there is no such norm. */
uint64_t qkv_head(const struct uckpt *u, unsigned ndim, const uint64_t *norm);

/* Find the rows of weights with `rows` rows in the fused parameter `fused`, where a head has `head`
 * rows; 0 if that is unknown.  -ENOTSUP, with the name of what has no such heads, or too many. */
int qkv_init(struct qkv *x, const char *fused, const char *const names[QKV_PARTS],
	     const uint64_t rows[QKV_PARTS], uint64_t head, struct errmsg *err);

#endif
