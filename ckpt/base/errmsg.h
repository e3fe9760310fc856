/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ERRMSG_H
#define UCKPT_ERRMSG_H

#define ERRMSG_MAX 512

/*
 * One error, told once: where it was found (file, position), what was
 * expected, what was there.  The code that detects a problem fills it in;
 * everybody above passes it up unchanged.
 */
struct errmsg {
	char text[ERRMSG_MAX];
};

/*
 * Format a message into `err` (which may be NULL) and return `rc`, so that
 * detection reads `return errmsg_set(err, -EBADMSG, "...")`.  Control
 * characters in the text, which may come from a hostile file, become '?'.
 */
int errmsg_set(struct errmsg *err, int rc, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
