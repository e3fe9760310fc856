/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_CUDAEMU_CUFILE_H
#define CUDAEMU_CUDAEMU_CUFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "cufile.h"

/*
 * cuFile for an emulated device.  Calls that NVIDIA's documentation forbids
 * fail an assertion.  Programs are linked with --wrap=fstatfs,--wrap=mincore,
 * so that files appear to be on a supported filesystem.
 *
 * The library is absent until a test enables it, or CUFILE_EMULATED in the
 * environment is "works", "short" (short reads) or "fails" (all reads but the
 * first).
 */
struct cudaemu_cufile {
	/* Its behaviour, set by tests. */
	bool there;          /* the library can be loaded */
	CUfileOpError opens; /* result of opening the driver */
	unsigned reaches;    /* supported filesystems: dstatusflags */
	unsigned control;    /* dcontrolflags */
	unsigned long fs;    /* the filesystem of all files */
	bool cache;          /* report the real page cache; else none */
	CUfileOpError registers; /* result of registering a file */
	size_t most;             /* most bytes per read; 0: unlimited */
	unsigned good;           /* successful reads before others fail ... */
	ssize_t result;          /* ... with this result, and EIO; 1: none
				  * fails */

	/* Counters. */
	unsigned drivers, handles; /* open now */
	unsigned registered, reads;
};

extern struct cudaemu_cufile cudaemu_cufile;

/* Reset to a working library with zero counters. */
void cudaemu_cufile_begin(void);

#endif
