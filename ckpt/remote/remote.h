/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_REMOTE_H
#define UCKPT_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "ckpt/base/access.h"
#include "ckpt/base/source.h"

struct errmsg;

/*
 * Files of servers, by paths that begin with a site's (site.h).  A file's identity
 * is its ETag, or its Last-Modified, with its size; what is read is of that
 * generation, or the read fails with -EIO.  Attributes and lists are remembered for
 * REMOTE_MEMORY_S seconds.  Thread-safe.
 */
#define REMOTE_MEMORY_S 2

/* As beneath_stat, with a message.  The mode lets everyone read: a server knows no
 * users of this machine. */
int remote_stat(const char *path, struct stat *st, struct access *access,
		struct errmsg *err);

/* As source_open; the source has no descriptor. */
int remote_open(struct source *s, const char *path, struct errmsg *err);

/* The names in a directory. */
struct remote_dir;
int remote_opendir(const char *path, struct remote_dir **out,
		   struct errmsg *err);
const char *remote_readdir(struct remote_dir *d);
mode_t remote_read_type(const struct remote_dir *d); /* of the name read last */
void remote_closedir(struct remote_dir *d);

#endif
