/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TAGDIR_IMPL_H
#define UCKPT_TAGDIR_IMPL_H

#include <stddef.h>

#include "ckpt/dirs/tagdir.h"

/* Between the parts of tagdir: files of a kind as they are found. */
struct list {
	struct tag_file *v;
	size_t n, cap;
};

/* Add the file `name` of `dir`: -ENOMEM, or as beneath_stat. */
int list_add(struct list *l, const char *dir, const char *name,
	     struct ckname id, struct errmsg *err);

/* Those of tensors on NVMe, in order; none if there is no such directory. */
int tagdir_scan_nvme(const char *tag, struct list *out, struct errmsg *err);

#endif
