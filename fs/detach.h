/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_DETACH_H
#define FS_DETACH_H

/* Serve in the background.  The process must fork before it has threads: a child would inherit
 * their locks, but not the threads. */

/* Continue in a child.  The parent waits for detach_ready in the child, or for the child's end,
 * and exits with the same status; it returns only after an error of its own (negative errno). */
int detach_start(void);

/* Leave the terminal and the working directory, and let the first process exit with 0.  Does
 * nothing if detach_start was not called. */
void detach_ready(void);

#endif
