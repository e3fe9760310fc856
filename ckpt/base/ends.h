/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ENDS_H
#define UCKPT_ENDS_H

#include <stddef.h>

#include "ckpt/base/source.h"

/*
 * A source whose ends are in memory: the formats of checkpoints are described at the
 * beginning and at the end of a file, in many small pieces, and a store may take
 * milliseconds for each.  Opening
 * reads at most twice, `len` bytes each.  `of` must outlive
 * it.  -ENOMEM, or as source_read.
 */
int ends_open(struct source *out, const struct source *of, size_t len,
	      struct errmsg *err);

/* Have the bytes before `to` in memory, too, by one more read.  Errors as ends_open, and
 * then nothing has changed. */
int ends_grow(struct source *s, uint64_t to, struct errmsg *err);

#endif
