/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_CUDNN_EMULATED_H
#define CUDAEMU_CUDNN_EMULATED_H

#include <stdbool.h>
#include <stddef.h>

/* The emulated library. */
struct cudaemu_cudnn {
	bool absent;    /* it cannot be loaded */
	size_t version; /* 0: one that can do all */
	bool broken;    /* it can be loaded, and no more */
	bool refuses;   /* it can do nothing */
	bool fails;     /* what was planned fails */
	unsigned runs;  /* graphs that have been run */
};
extern struct cudaemu_cudnn cudaemu_cudnn;

#endif
