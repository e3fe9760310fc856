/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RECUT_H
#define TESTS_RECUT_H

struct errmsg;
struct view;
struct view_options;

/* Open a tag, re-cut for this number of ranks and, unless it is 0, this
 * stage. */
int recut_open(const char *tag, unsigned ranks, unsigned stage,
	       struct view **out, struct errmsg *err);

/* Write the files of a re-cut tag into `dir`, which exists and is empty. */
int recut_write(struct view *v, const char *dir, struct errmsg *err);

#endif
