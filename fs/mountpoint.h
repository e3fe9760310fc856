/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_MOUNTPOINT_H
#define UCFS_MOUNTPOINT_H

#include <stdbool.h>

/* The mount point, and why mounting on it may fail.  Messages are printed, with advice. */

/*
 * Replace `*path` by its absolute name, and return 0.  Returns -1 after a message if it is no
 * directory, is left over from a server that ended, or, unless `nonempty`, is a ucfs mount already.
 * Returns 1 for /dev/fd/N: another process has mounted, on a descriptor of /dev/fuse that this
 * process has inherited.
 */
int mountpoint_resolve(char **path, bool nonempty);

/* Log libfuse's messages, but hold them back during the mount. */
void mountpoint_take_messages(void);
void mountpoint_hold_messages(void);
void mountpoint_mounted(void);

/* Print why libfuse could not mount there. */
void mountpoint_explain(const char *path);

#endif
