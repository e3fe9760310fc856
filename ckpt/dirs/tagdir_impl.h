/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CKDIR_IMPL_H
#define UCKPT_CKDIR_IMPL_H

#include <stddef.h>
#include <sys/stat.h>

#include "ckpt/dirs/tagdir.h"

/* Between the parts of ckdir: files of a kind as they are found. */
struct list {
	struct ckfile *v;
	size_t n, cap;
};

/* Add the file `name` of `dir`: -ENOMEM or 0. */
int list_add(struct list *l, const char *dir, const char *name,
	     struct ckname id, const struct stat *st);
void list_done(struct list *l);

/* Those of tensors on NVMe, in order; none if there is no such directory. */
int ckdir_scan_swapped(const char *tag, struct list *out, struct errmsg *err);

#endif
