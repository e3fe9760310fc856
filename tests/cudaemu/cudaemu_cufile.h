/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_CUDAEMU_CUFILE_H
#define CUDAEMU_CUDAEMU_CUFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "cufile.h"

/*
 * cuFile for an emulated device.  Whoever calls it as NVIDIA's documentation
 * forbids is stopped by an assertion.  Programs with it are linked with
 * --wrap=fstatfs,--wrap=mincore, so that files are where it can read them,
 * whatever disk the tests have.
 *
 * There is none until a test says so, or CUFILE_EMULATED in the environment:
 * "works", "short" (reads bring less than is asked for) or "fails" (all but the
 * first).
 */
struct cudaemu_cufile {
	/* What it is like. */
	bool there;          /* the library can be loaded */
	CUfileOpError opens; /* what the driver's opening comes to */
	unsigned reaches;    /* filesystems: dstatusflags */
	unsigned control;    /* dcontrolflags */
	unsigned long fs;    /* that all files are on */
	bool cache;          /* pages are in memory as they are; else none */
	CUfileOpError registers; /* what registering a file comes to */
	size_t most;             /* bytes of a read; 0: as many as asked for */
	unsigned good;           /* reads that go well before others fail ... */
	ssize_t result;          /* ... with this, and EIO; 1: none does */

	/* What was done. */
	unsigned drivers, handles; /* open now */
	unsigned registered, reads;
};

extern struct cudaemu_cufile cudaemu_cufile;

/* One that works and has done nothing. */
void cudaemu_cufile_begin(void);

#endif
