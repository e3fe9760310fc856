/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_KEEPER_H
#define FS_KEEPER_H

#include <stdbool.h>

/*
 * Options auto_unmount and until: a process of its own detaches the mount if the server dies,
 * or when the mount's owner closes its end of a pipe or socket.  It knows the mount by its id (/proc/self/mountinfo), so that whatever else is mounted at the same
 * path by then stays.
 */

/* Start the process, before there are threads and before /dev/fuse is open.  `until` is the
 * descriptor that the owner passed, or -1; it is closed here, and by the process when it has
 * done its work.  If the owner ends before there is a mount, the server is sent SIGTERM.
 * `removes`: the mount point, too, in the end.  Negative errno if that fails. */
int keeper_start(const char *mountpoint, int until, bool removes);

/* The mount point is mounted: keep its mount from now on.  -ENOENT if its id cannot be
 * found.  Nothing if keeper_start was not called. */
int keeper_mounted(const char *mountpoint);

#endif
