/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_MOUNTPOINT_H
#define UCFS_MOUNTPOINT_H

#include <stdbool.h>

/* The mount point, and why mounting on it is not possible.  Messages are printed
 * and say what to do. */

/*
 * Replace `*path` by its absolute name, and return 0.  Returns -1 after a message if it
 * is no directory, is left over from a server that ended, or, unless `nonempty`, is a
 * ucfs mount already.  Returns 1 for /dev/fd/N: somebody else has mounted, on a
 * descriptor of /dev/fuse that we have inherited.
 */
int mountpoint_resolve(char **path, bool nonempty);

/* Log what libfuse has to say, but hold it back while a mount is attempted. */
void mountpoint_take_messages(void);
void mountpoint_hold_messages(void);
void mountpoint_mounted(void);

/* Print why libfuse could not mount there. */
void mountpoint_explain(const char *path);

#endif
