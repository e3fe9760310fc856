/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TAGDIR_IMPL_H
#define UCKPT_TAGDIR_IMPL_H

#include <stddef.h>

#include "ckpt/dirs/tagdir.h"

/* Shared by tagdir*.c: files of one kind, while they are found. */
struct list {
	struct tag_file *v;
	size_t n, cap;
};

/* Add the file that entry `i` of `dir` names, with its path only.  -ENOMEM. */
struct dirlist;
int list_add(struct list *l, const struct dirlist *dir, size_t i,
	     struct ckname id, struct errmsg *err);

/* Fill in the rest of all files; errors as files_find. */
int list_find(struct list *l, struct errmsg *err);

/* List the files of tensors on NVMe, sorted; none if the directory is missing. */
int tagdir_scan_nvme(const char *tag, struct list *out, struct errmsg *err);

#endif
