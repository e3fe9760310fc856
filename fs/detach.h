/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_DETACH_H
#define FS_DETACH_H

/* Serve in the background.  The process forks before it has threads: a child would
 * have their locks, and not them. */

/* Go on in a child.  This process waits for detach_ready in the child, or for its end,
 * and exits as it does; it returns only with an error (negative errno) of its own. */
int detach_start(void);

/* Leave the terminal and the working directory, and let the first process exit with 0.
 * Nothing if detach_start was not called. */
void detach_ready(void);

#endif
