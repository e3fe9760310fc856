/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STORE_H
#define UCKPT_STORE_H

#include <stdbool.h>

#include "ckpt/base/access.h"
#include "ckpt/base/dirlist.h"
#include "ckpt/base/source.h"

struct errmsg;
struct uckpt;

/* Files of this machine (beneath.h) and of servers (remote.h), by path. */

/* As beneath_stat, with a message. */
int store_stat(struct uckpt *u, const char *path, bool plain, struct attrs *out,
	       struct errmsg *err);

/* As source_open.  Only a local file has a descriptor. */
int store_open(struct uckpt *u, struct source *s, const char *path,
	       struct errmsg *err);

/* Add a directory and its entries.  -ENOTDIR; otherwise as store_open. */
int store_list(struct uckpt *u, const char *path, struct dirlist *out,
	       struct errmsg *err);

#endif
