/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_REALFILES_H
#define TESTS_REALFILES_H

#include <glob.h>

/* List the files of the source tree that match a pattern, made as by printf.  The test program ends
 * if there are none.  The caller frees with globfree(). */
__attribute__((format(printf, 2, 3))) void realfiles_glob(glob_t *g,
							   const char *pattern,
							   ...);

/* All .pt files of the reference checkpoints. */
#define REALFILES_PT "tests/good/*/*/*.pt"

/* Return the first line of the file `path`, the expected message for another file; remove ".expect"
 * from `path`.  The caller frees the line. */
char *realfiles_expect(char *path);

#endif
