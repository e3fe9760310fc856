/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NUMBERS_H
#define TESTS_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/ptfile.h"

struct value;

/*
 * PyTorch's results: a file of tests/numbers, which is a list of dicts (see
 * interop/make_numbers.py).  Any defect in it fails the running test.
 */
struct numbers {
	struct ptfile file;
	char path[4096];
};

void numbers_open(struct numbers *n, const char *name);
void numbers_close(struct numbers *n);

size_t numbers_count(const struct numbers *n);
const struct value *numbers_case(const struct numbers *n, size_t i);

/* The i-th of the integers under "sizes". */
size_t numbers_size(const struct value *dict, size_t i);

/* A tensor of `numel` elements, converted to float32, or an int32 one; freed by the caller. */
float *numbers_floats(const struct numbers *n, const struct value *dict, const char *key,
		      size_t numel);
int32_t *numbers_ints(const struct numbers *n, const struct value *dict, const char *key,
		      size_t numel);

/* The only element of a tensor. */
double numbers_scalar(const struct numbers *n, const struct value *dict, const char *key);

/* Fails, naming `what`, unless the error of each element of `got` is at most `tolerance` times
 * the largest element of `want`. */
void numbers_near(const char *what, const float *got, const float *want, size_t numel,
		  double tolerance);

#endif
