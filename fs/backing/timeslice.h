/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_TURN_H
#define UCFS_TURN_H

/*
 * How long a thread wants the processor at a time.  Linux (6.12) lets one that
 * asks for short turns have its own at once, where others have had theirs; it
 * gets no more in all.  Threads inherit it from whoever starts them.  A kernel
 * that knows no turns ignores this.
 */

/* For who answers requests: a reader waits for each of them. */
void turn_short(void);

/* For work that takes milliseconds in any case. */
void turn_usual(void);

#endif
