/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VFILE_SOURCE_H
#define UCKPT_VFILE_SOURCE_H

#include <stdint.h>

#include "ckpt/base/source.h"

struct vfile;

/* Read a virtual file as a source.  Takes ownership of `f`, also if it fails.  `name`
 * must outlive the source.  -ENOMEM. */
int vfile_source_open(struct source *s, struct vfile *f, const char *name,
		      struct errmsg *err);

/* Bytes up to `end` will be read from front to back: have them read ahead.  What
 * follows `end` is not.  Call it before such reads; by default nothing is read ahead. */
void vfile_source_expect(struct source *s, uint64_t end);

#endif
