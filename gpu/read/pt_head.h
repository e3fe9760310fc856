/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_FRONT_H
#define UCTRAIN_FRONT_H

#include <stdint.h>

#include "ckpt/base/arena.h"

struct errmsg;
struct source;
struct value;

/*
 * The object of a file of torch.save, read from its beginning.  The directory
 * at its end holds the tensors' checksums, and a mount that is asked for it
 * has to read all of them first.
 */
struct front {
	struct arena arena; /* owns `root` */
	struct value *root;
};

/*
 * `len` bytes come before the file's first storage.  -ENOTSUP if they do not
 * begin as torch 2.7 or later begins a file, errors of the pickle, -ENOMEM.
 */
int front_read(struct front *f, const struct source *src, uint64_t len,
	       struct errmsg *err);
void front_done(struct front *f);

#endif
