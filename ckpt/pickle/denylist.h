/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DENYLIST_H
#define UCKPT_DENYLIST_H

#include <stdbool.h>

/*
 * Does module.name run commands or load code?  A pickle that names such a
 * thing was made to attack whoever unpickles it.  It could not harm us, but
 * refusing keeps it from being passed on in a file that we emit.
 */
bool denylist_global(const char *module, const char *name);

#endif
