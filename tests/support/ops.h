/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_OPS_H
#define TESTS_OPS_H

#include "tests/support/sides.h"

/* The operations of a backend, and the shapes for which two backends are compared.  Buffers that
 * an operation overwrites start as NaN, those to which it adds start nonzero. */
struct shape {
	size_t n[4];
	float drop;
	unsigned how; /* meaning depends on the operation */
	bool fresh;   /* gradients are stored, not added: they start as NaN, too */
};

struct op {
	const char *name;
	void (*work)(struct side *s, const struct shape *h);
	const struct shape *shapes;
	size_t nshapes;
};

#define OPS 8
extern const struct op ops[OPS];

/* Conversions between float32 and 16-bit types, whose rounding all backends share. */
extern const struct op narrowing;

const struct op *op_named(const char *name);

#endif
