/* SPDX-License-Identifier: Apache-2.0 */
/* A small checkpoint in a new directory, and its complete index. */
#ifndef TESTS_INDEXED_H
#define TESTS_INDEXED_H

#include <stdbool.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"
#include "tests/make/mkckpt.h"

struct indexed {
	struct mkckpt c;
	char *dir;
	struct bytebuf index;
};

struct indexed indexed_make(int stage);
void indexed_done(struct indexed *x);

/* The index of a plan of the directory, after `edit` (if any). */
void indexed_write(struct indexed *x, void (*edit)(struct zero_checkpoint *r));

/* Open with the index.  Whether it was of use; why not. */
bool indexed_is_used(const struct indexed *x, struct plan **p,
		     struct errmsg *refused);

/* Check that all elements of the tree are the checkpoint's. */
void indexed_check(const struct indexed *x, struct plan *p);

#endif
