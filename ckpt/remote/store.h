/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STORE_H
#define UCKPT_STORE_H

#include <stdbool.h>

#include "ckpt/base/access.h"
#include "ckpt/base/dirlist.h"
#include "ckpt/base/source.h"

struct errmsg;
struct uckpt;

/* Where files are, by path. */
struct store {
	/* As beneath_stat, with a message. */
	int (*stat)(struct uckpt *u, const char *path, bool plain,
		    struct attrs *out, struct errmsg *err);

	/* As source_open.  Only a local file has a descriptor. */
	int (*open)(struct uckpt *u, struct source *s, const char *path,
		    struct errmsg *err);

	/* Add a directory and its entries.  -ENOTDIR; otherwise as `open`. */
	int (*list)(struct uckpt *u, const char *path, struct dirlist *out,
		    struct errmsg *err);
};

/* The store that a path is in: this machine (beneath.h) or servers (remote.h). */
const struct store *store_of(const char *path);

#endif
