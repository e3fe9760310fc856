/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_CUDNN_EMULATED_H
#define CUDAEMU_CUDNN_EMULATED_H

#include <stdbool.h>
#include <stddef.h>

/* The state of the emulated library. */
struct cudaemu_cudnn {
	bool absent;    /* loading fails */
	size_t version; /* 0: the newest supported */
	bool broken;    /* loading succeeds, creating a handle fails */
	bool refuses;   /* no graph is supported */
	bool fails;     /* execution fails */
	unsigned runs;  /* graphs executed */
};
extern struct cudaemu_cudnn cudaemu_cudnn;

#endif
