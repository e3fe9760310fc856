/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_OPTIONS_IMPL_H
#define UCFS_OPTIONS_IMPL_H

#include <fuse_opt.h>

/* Shared by options*.c: what each option of the table means. */
enum key {
	KEY_IGNORE,
	KEY_GONE, /* of an earlier version: accepted for one, without effect */
	KEY_KEEP, /* for libfuse */
	KEY_REMOUNT,
	KEY_NONEMPTY,
	KEY_HELP,
	KEY_VERSION,
	KEY_FOREGROUND,
	KEY_DEBUG,
	KEY_CRC,
	KEY_STAGE,
	KEY_RULES,
	KEY_PRESET,
	KEY_HF_DTYPE,
	KEY_HF_SHARD_SIZE,
	KEY_UID,
	KEY_ALLOW_OTHER,
	KEY_FOLLOW_LINKS,
	KEY_GID,
	KEY_READAHEAD,
	KEY_IO_URING,
	KEY_LOG,
	KEY_CHECK,
	KEY_VIEW,
	KEY_RANKS,
	KEY_REPLACE,
	KEY_REMOTE, /* about servers: remote_options.h */
};

/* Every option, so that libfuse never has to complain of one. */
extern const struct fuse_opt options_table[];

/* Report an option that is not in the table, or has a value that it may not have or
 * lacks; name the one that was probably meant.  Returns -1. */
int options_report_unknown(const char *arg);

#endif
