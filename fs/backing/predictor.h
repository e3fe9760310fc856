/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_PREDICTOR_H
#define UCFS_PREDICTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PREDICTOR_EXPECTED 96

/*
 * Recognises loaders that walk a tree in a known order.  After each open the
 * caller records an expectation for each order: the file that would come next.
 * An open that was expected reveals the loader's order.  Concurrent loaders do
 * not disturb each other.  Valid when zero-initialised; not thread-safe.
 */
struct predictor {
	struct {
		uint64_t ino; /* 0: none */
		unsigned order;
		uint64_t raised; /* number of the open that raised it */
	} expected[PREDICTOR_EXPECTED];
	size_t next; /* the oldest; replaced next */
	uint64_t opens;
	unsigned last_order; /* of the last expected open */
};

/* The file that follows the last observed one in `order`. */
void predictor_expect(struct predictor *o, uint64_t ino, unsigned order);

/* Observe an open.  If it was expected, return true and its order; the
 * expectations raised with it are dropped. */
bool predictor_observe(struct predictor *o, uint64_t ino, unsigned *order);

#endif
