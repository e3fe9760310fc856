/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_HALFWAY_H
#define TESTS_HALFWAY_H

/* Environment variable: the path of the file whose second half cannot be read. */
#define HALFWAY_FILE "HALFWAY_FILE"

#endif
