/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_HUGEFS_H
#define UCFS_HUGEFS_H

/*
 * Create a tmpfs of huge pages that is attached nowhere, so that only this
 * process sees it and it ends with the process.  Returns a descriptor of its
 * root, which the caller closes, or -1 without CAP_SYS_ADMIN.
 */
int hugefs_mount(void);

#endif
