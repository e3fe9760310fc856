/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RENAMEAT2_H
#define UCKPT_RENAMEAT2_H

#include <stdio.h>

/* renameat2(2), which musl 1.2.3 does not have. */
#ifndef RENAME_NOREPLACE
#include <linux/fs.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int renameat2(int from_dir, const char *from, int to_dir,
			    const char *to, unsigned flags)
{
	return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}
#endif

#endif
