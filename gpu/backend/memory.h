/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_MEMORY_H
#define UCTRAIN_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;

/* Allocations that are freed together.  The caller checks for failures once, after the last one. */
struct backend_memory {
	struct backend *b;
	uint64_t bytes;   /* bytes of device memory that were requested */
	uint64_t lacking; /* bytes of any kind that could not be allocated */
	struct backend_block {
		void *p;
		bool pinned;
	} * of;
	size_t n, cap;
};

/* Allocate zeroed memory of the device, or memory of host_alloc.  NULL on failure. */
void *backend_take(struct backend_memory *m, size_t bytes);
void *backend_take_pinned(struct backend_memory *m, size_t bytes);

void backend_give_back(struct backend_memory *m);

#endif
