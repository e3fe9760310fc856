/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_WRITE_ALL_H
#define UCKPT_WRITE_ALL_H

#include <stddef.h>
#include <stdint.h>

/* Write all of `len` bytes where the file stands, or at `off`: the system calls
 * may write less, and be interrupted.  Returns 0 or a negative errno, which is
 * in errno, too. */
int write_all(int fd, const void *p, size_t len)
	__attribute__((warn_unused_result));
int pwrite_all(int fd, const void *p, size_t len, uint64_t off)
	__attribute__((warn_unused_result));

#endif
