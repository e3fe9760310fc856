/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STORE_H
#define UCKPT_STORE_H

#include <stdbool.h>
#include <sys/stat.h>

#include "ckpt/base/access.h"
#include "ckpt/base/source.h"

struct errmsg;

/* Files by path, local (beneath.h) or of servers (remote.h). */

/* As beneath_stat, with a message as of beneath_fail. */
int store_stat(const char *path, struct stat *st, struct access *access,
	       struct errmsg *err);

/* As source_open. */
int store_open(struct source *s, const char *path, struct errmsg *err);

/* As beneath_lstat. */
int store_lstat(const char *path, struct stat *st, bool *has_acl);

/* As beneath_open_plain; -EREMOTE for a file that has no descriptor. */
int store_open_plain(const char *path, int flags);

#endif
