/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_REALFILES_H
#define TESTS_REALFILES_H

#include <glob.h>

/* All .pt files of the reference checkpoints in tests/good.  The test program
 * ends if there are none.  The caller frees with globfree(). */
void realfiles_list(glob_t *g);

#endif
