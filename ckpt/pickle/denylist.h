/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HOSTILE_H
#define UCKPT_HOSTILE_H

#include <stdbool.h>

/*
 * Does module.name run commands or load code?  A pickle that names such a
 * thing was made to attack whoever unpickles it.  It could not harm us, but
 * refusing keeps it from being passed on in a file that we emit.
 */
bool hostile_global(const char *module, const char *name);

#endif
