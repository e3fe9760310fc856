/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_PLACE_H
#define UCKPT_DCP_PLACE_H

#include <stdint.h>

struct dcp_chunk;
struct dcp_item;
struct errmsg;

/*
 * Sort the chunks of a tensor and check that each element is in exactly one of them.
 * torch checks it when it saves on several ranks, and never when it loads.  -EBADMSG if
 * not, -E2BIG for chunks that take too long to compare; `file` is for messages.
 */
int dcp_place_check(struct dcp_item *t, const char *file, struct errmsg *err);

/* The chunk with elements that begins at this place of a tensor that has been checked, or
 * NULL. */
struct dcp_chunk *dcp_place_find(const struct dcp_item *t, const uint64_t *offset);

/* Where the elements of a chunk lie in its tensor; both are row-major, so that elements
 * have the same order in both. */

/* The number of a chunk's elements that come before element `e` of the tensor; `e` may be
 * the number of all. */
uint64_t dcp_place_before(const struct dcp_item *t, const struct dcp_chunk *c,
			  uint64_t e);

/* The place in the tensor of element `e` of the chunk.  Returns the number of elements
 * that follow each other from there on in both, itself included. */
uint64_t dcp_place(const struct dcp_item *t, const struct dcp_chunk *c, uint64_t e,
		   uint64_t *at);

#endif
