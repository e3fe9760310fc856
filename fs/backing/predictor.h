/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_ORDER_H
#define UCFS_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORDER_EXPECTED 96

/*
 * Which way loaders go through a tree.  Each open of a file raises
 * expectations: what would come next if the loader went this way or that.  An
 * open that was expected shows a loader that does.  Several loaders do not
 * disturb each other.  Zero initialised it is valid.
 */
struct order {
	struct {
		uint64_t ino; /* 0: none */
		unsigned way;
		uint64_t raised; /* by which open */
	} expected[ORDER_EXPECTED];
	size_t next; /* the oldest, to be forgotten first */
	uint64_t opens;
	bool has_habit;
	unsigned habit; /* the way that was met last */
};

/* Going `way`, this file will come. */
void order_expect(struct order *o, uint64_t ino, unsigned way);

/* A file was opened: was it expected, and which way?  Told once. */
bool order_meet(struct order *o, uint64_t ino, unsigned *way);

/* A loader begins somewhere: it will go as the last one did.  A guess that was
 * not confirmed by anybody since is not made again. */
bool order_guess(struct order *o, unsigned *way);

#endif
