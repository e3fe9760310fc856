/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LITERAL_H
#define TESTS_LITERAL_H

#include "tests/make/mkpt.h"

/*
 * Values in Python's syntax, for tables of tests: None, True, numbers, 'strings' (with
 * \0 for a NUL), (tuples,), [lists], {dicts}, torch's Size(2, 3); tensors of zeros in a
 * shape, Zeros(9) of float32 and Halves(3, 2) of bfloat16; Scalar(5.0), a tensor without
 * dimensions; Nvme('id'), a tensor that was offloaded; and Call('os', 'system', 'true').
 * Malformed text aborts.
 */

/* Return the value of a literal; NULL for NULL. */
struct value *literal_value(struct mkpt *m, const char *text);

/*
 * Change what is in `root` by statements that ';' separates:
 *
 *   ['param_shapes'][0]['l1.bias'] = Size(5)
 *   ['num_experts'] += 4                        append to a list
 *   ['state'] += {'step': 4}                    add keys, even those that are there
 *   ['layers'][1] = @['layers'][0]              what is there
 *   del ['optimizer']
 *   = []                                        all of it
 *
 * Of 'a|b' the key that is there is meant.  A tensor has .args, those of its rebuild call,
 * its storage a .pid, and an object a .state.
 */
void literal_change(struct mkpt *m, struct value *root, const char *text);

#endif
