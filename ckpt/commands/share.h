/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SHARE_H
#define UCKPT_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Limit of processes that share work. */
#define SHARES_MAX 65536

/* The number of this process among several that share work. */
struct share {
	unsigned part, parts; /* counted from 1; 0 and 0: this process does everything */
};

/* Parse "2/8", or "auto" for the variables that a launcher has set.  Returns NULL, or an error
 * text. */
const char *share_parse(const char *text, struct share *out);

/*
 * Choose the items of this process, of `n` items with these sizes, in `mine`: each item belongs to
 * one process, and all processes get about as many bytes.  Every process must list the same items
 * in the same order.  False when memory runs out.
 */
bool share_choose(const struct share *s, const uint64_t *sizes, size_t n, bool *mine);

#endif
