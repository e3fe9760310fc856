/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SHARE_H
#define UCKPT_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of processes that share a work. */
#define SHARES_MAX 65536

/* Which of several processes that do one work together this one is. */
struct share {
	unsigned part, parts; /* from 1 on; 0 and 0: it does all */
};

/* Parse "2/8", or "auto" for what a launcher has set in the environment.  Returns NULL, or
 * what is wrong. */
const char *share_parse(const char *text, struct share *out);

/*
 * Choose among `n` things of these sizes those that this process does, in `mine`: each is one
 * process's, and all have about as many bytes.  Every process must list the same things in
 * the same order.  False when memory runs out.
 */
bool share_choose(const struct share *s, const uint64_t *sizes, size_t n, bool *mine);

#endif
