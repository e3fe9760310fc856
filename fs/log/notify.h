/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_NOTIFY_H
#define UCFS_NOTIFY_H

/*
 * Report to the service manager that the mount is served, if one waits for it
 * (systemd's Type=notify).  Returns 0, also if no one waits, or a negated errno.
 */
int notify_ready(void);

#endif
