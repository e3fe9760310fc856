/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfuse and fusermount3 only report which call failed.  A user in a container, or on a machine
 * without the package, needs to know what to install or whom to ask, and that a conversion works
 * without FUSE.
 */
#include "fs/mountpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_log.h>
#include <mntent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fs/log/log.h"

/* /dev/fuse: Documentation/admin-guide/devices.txt of Linux, and <linux/miscdevice.h>. */
#define FUSE_MAJOR 10
#define FUSE_MINOR 229

static bool is_ucfs_mount(const char *path)
{
	FILE *f = setmntent("/proc/self/mounts", "re");
	const struct mntent *m;
	bool found = false;

	while (f && !found && (m = getmntent(f)))
		found = strcmp(m->mnt_type, "fuse.ucfs") == 0 &&
			strcmp(m->mnt_dir, path) == 0;
	if (f)
		endmntent(f);
	return found;
}

static int resolve_directory(char **path, bool nonempty)
{
	char *full = realpath(*path, NULL);
	struct statvfs fs;
	struct stat st;
	/* Attributes may be cached, but statvfs asks the server. */
	int error = full && stat(full, &st) == 0 && statvfs(full, &fs) == 0
			    ? 0
			    : errno;

	if (!error && !S_ISDIR(st.st_mode))
		error = ENOTDIR;
	if (error == ENOTCONN)
		log_error("mount point %s: a mount whose server has ended;"
			  " remove it with: fusermount3 -u %s (as root: umount %s)",
			  *path, *path, *path);
	else if (error)
		log_error("mount point %s: %s", *path, strerror(error));
	else if (!nonempty && is_ucfs_mount(full))
		log_error("mount point %s: is a ucfs mount already; unmount it"
			  " with: fusermount3 -u %s, or mount over it with -o nonempty",
			  full, full);
	else
		nonempty = true;
	free(*path);
	*path = full;
	return !error && nonempty ? 0 : -1;
}

/* Only reading requests shows whether it is mounted. */
static int check_descriptor(const char *path, int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		log_error("mount point %s: %s", path, strerror(errno));
	else if (!S_ISCHR(st.st_mode) ||
		 st.st_rdev != makedev(FUSE_MAJOR, FUSE_MINOR))
		log_error("mount point %s: not a descriptor of /dev/fuse", path);
	else
		return 1;
	return -1;
}

int mountpoint_resolve(char **path, bool nonempty)
{
	int fd, len = 0;

	if (sscanf(*path, "/dev/fd/%d%n", &fd, &len) == 1 && !(*path)[len])
		return check_descriptor(*path, fd);
	return resolve_directory(path, nonempty);
}

#define MESSAGE_MAX 512

/* Used by one thread until mountpoint_mounted: */
static bool holding;
static char said[MESSAGE_MAX]; /* held back: libfuse's last message */

/* With -d, libfuse prints its requests in pieces of lines. */
static void take_message(enum fuse_log_level level, const char *fmt, va_list ap)
{
	static const char own[] = "fuse: ";
	const size_t n = sizeof(own) - 1;
	char text[MESSAGE_MAX];

	if (level >= FUSE_LOG_INFO) {
		vfprintf(stderr, fmt, ap);
		return;
	}
	vsnprintf(text, sizeof(text), fmt, ap);
	text[strcspn(text, "\n")] = '\0';
	if (strncmp(text, own, n) == 0)
		memmove(text, text + n, strlen(text + n) + 1);
	if (holding)
		strcpy(said, text);
	else if (level <= FUSE_LOG_ERR)
		log_error("libfuse: %s", text);
	else
		log_warning("libfuse: %s", text);
}

void mountpoint_take_messages(void)
{
	fuse_set_log_func(take_message);
}

void mountpoint_hold_messages(void)
{
	holding = true;
}

void mountpoint_mounted(void)
{
	holding = false;
	if (*said)
		log_warning("libfuse: %s", said);
}

/* Return why the device cannot be opened, or NULL. */
static const char *explain_device(void)
{
	const int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (fd >= 0) {
		close(fd);
		return NULL;
	}
	switch (errno) {
	case ENOENT:
	case ENODEV:
	case ENXIO:
		return "there is no /dev/fuse: load the kernel's module with"
		       " 'modprobe fuse', or start the container with"
		       " '--device /dev/fuse --cap-add SYS_ADMIN'";
	case EACCES:
		return "no permission to open /dev/fuse: ask the"
		       " administrator to let users do so (chmod 666)";
	case EPERM:
		return "the container may not use /dev/fuse: start it with"
		       " '--device /dev/fuse --cap-add SYS_ADMIN'";
	}
	return NULL;
}

static const char *explain(const char *path)
{
	const char *device = explain_device();

	if (device)
		return device;
	if (geteuid() == 0)
		return "root may not mount here: start the container with"
		       " '--cap-add SYS_ADMIN' (ucfs-deploy(7))";
	if (system("command -v fusermount3 >/dev/null 2>&1") != 0)
		return "users other than root need fusermount3: install the package fuse3";
	if (access(path, W_OK) < 0)
		return "users other than root need write permission for the mount point";
	return "fusermount3 refused; allow_other needs user_allow_other in"
	       " /etc/fuse.conf, and containers more privileges (ucfs-deploy(7))";
}

void mountpoint_explain(const char *path)
{
	log_error("cannot mount on %s: %s; 'ucckpt convert' writes the same"
		  " tree and needs none of it%s%s%s",
		  path, explain(path), *said ? " (libfuse: " : "", said,
		  *said ? ")" : "");
}
