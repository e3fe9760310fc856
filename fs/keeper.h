/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_KEEPER_H
#define FS_KEEPER_H

#include <stdbool.h>

/*
 * Options auto_unmount and until: a process of its own detaches the mount if the server dies, or
 * when the mount's owner closes its end of a pipe or socket.  It knows the mount by its id
 * (/proc/self/mountinfo), so that a later mount at the same path stays.
 */

/* Start the process, before there are threads and before /dev/fuse is open.  `until` is the
 * descriptor that the owner passed, or -1; it is closed here, and by the process at its end.  If
 * the owner ends before the mount exists, the server gets SIGTERM.  `removes`: also remove the
 * mount point at the end.  Returns a negative errno on failure. */
int keeper_start(const char *mountpoint, int until, bool removes);

/* Start watching the mount, now that it exists.  -ENOENT if its id cannot be found.  Does
 * nothing if keeper_start was not called. */
int keeper_mounted(const char *mountpoint);

#endif
