/* SPDX-License-Identifier: Apache-2.0 */
/* By system calls, since glibc has functions for them only from 2.36 on. */
#include "fs/backing/hugefs.h"

#include <linux/mount.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool set_option(int fs, const char *name, const char *value)
{
	return syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, name, value, 0) ==
	       0;
}

int hugefs_mount(void)
{
	const int fs = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
	int mount = -1;

	if (fs < 0)
		return -1;
	/* Best effort: a kernel without huge pages uses small ones. */
	set_option(fs, "huge", "always");
	if (set_option(fs, "size", "0") && set_option(fs, "mode", "0700") &&
	    syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
		mount = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
				     MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
					     MOUNT_ATTR_NOEXEC);
	close(fs);
	return mount;
}
