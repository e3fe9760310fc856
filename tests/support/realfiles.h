/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_REALFILES_H
#define TESTS_REALFILES_H

#include <glob.h>

/* All .pt files of the reference checkpoints in tests/good; there are some, or
 * the test program ends.  The caller frees with globfree(). */
void realfiles_list(glob_t *g);

#endif
