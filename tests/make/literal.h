/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LITERAL_H
#define TESTS_LITERAL_H

#include "tests/make/mkpt.h"

/*
 * Values in Python's syntax, for tables of tests: None, True, numbers, 'strings',
 * (tuples,), [lists], {dicts} and torch's Size(2, 3).  What is malformed aborts.
 */

/* The value of a literal; NULL for NULL. */
struct value *literal_value(struct mkpt *m, const char *text);

/*
 * Change what is in `root` by statements that ';' separates:
 *
 *   ['param_shapes'][0]['l1.bias'] = Size(5)
 *   ['num_experts'] += 4                        append
 *   del ['optimizer']
 *
 * Of 'a|b' the key that is there is meant.
 */
void literal_change(struct mkpt *m, struct value *root, const char *text);

#endif
