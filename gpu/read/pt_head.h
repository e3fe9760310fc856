/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_PT_HEAD_H
#define UCTRAIN_PT_HEAD_H

#include "ckpt/base/arena.h"
#include "ckpt/base/bytes.h"

struct errmsg;
struct value;

/*
 * The object of a torch.save file, read from the beginning of the file.  The
 * directory at its end contains checksums of the tensors, which a mount has to
 * read completely to serve it.
 */
struct pt_head {
	struct arena arena; /* owns `root` */
	struct value *root;
};

/* `bytes` are those before the first storage of the file `name`. -ENOTSUP if they do not
 * have the form that torch 2.7 or later writes, a pickle error, or -ENOMEM. */
int pt_head_read(struct pt_head *f, struct span bytes, const char *name,
		 struct errmsg *err);
void pt_head_done(struct pt_head *f);

#endif
