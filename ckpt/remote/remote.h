/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_REMOTE_H
#define UCKPT_REMOTE_H

#include "ckpt/remote/store.h"

/*
 * Files of servers, by paths that begin with a site's (site.h).  A file's identity
 * is its ETag, or its Last-Modified, with its size; what is read is of that
 * generation, or the read fails with -EIO.  Modes let everyone read: a server knows no
 * users of this machine.  Attributes and lists are remembered for REMOTE_MEMORY_S
 * seconds.  Thread-safe.
 */
#define REMOTE_MEMORY_S 2

extern const struct store remote_store;

#endif
