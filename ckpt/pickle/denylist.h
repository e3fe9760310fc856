/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DENYLIST_H
#define UCKPT_DENYLIST_H

#include <stdbool.h>

/*
 * Does module.name run commands or load code?  A pickle with such a global was made
 * to attack programs that unpickle it.  It cannot harm this one, but it must not be
 * copied into a file that we write.
 */
bool denylist_global(const char *module, const char *name);

#endif
