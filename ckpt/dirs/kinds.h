/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_KINDS_H
#define UCKPT_KINDS_H

#include <stdbool.h>

struct errmsg;
struct uckpt;

/* Is the directory a universal checkpoint, which needs no view? */
bool kinds_is_universal(struct uckpt *u, const char *path);

/*
 * Say what `path` is, which is no ZeRO checkpoint, and what can be done with it.
 * Returns -ENOTSUP if the format is known, -ENOENT if there is no checkpoint, or the
 * system's error.
 */
int kinds_refuse(struct uckpt *u, const char *path, struct errmsg *err);

#endif
