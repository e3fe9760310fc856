/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_KEEPER_H
#define FS_KEEPER_H

/*
 * Option auto_unmount: a process of its own detaches the mount if the server dies.  It knows
 * the mount by its id (/proc/self/mountinfo), so that whatever else is mounted at the same
 * path by then stays.
 */

/* Start the process, before there are threads and before /dev/fuse is open.  Negative errno
 * if that fails. */
int keeper_start(const char *mountpoint);

/* The mount point is mounted: keep its mount from now on.  -ENOENT if its id cannot be
 * found.  Nothing if keeper_start was not called. */
int keeper_mounted(const char *mountpoint);

#endif
