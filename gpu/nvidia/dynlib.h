/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DYNLIB_H
#define UCTRAIN_DYNLIB_H

#include <stdbool.h>
#include <stddef.h>

/* A function of a library, and where to store its address. */
struct dynlib_call {
	const char *name;
	void **at;
};

/*
 * Load a library that uctrain is not linked with, because few machines have it
 * or few runs need it, and look up n functions.  The dynamic linker's own search
 * comes first, then the directories in which configure found CUDA.  The library
 * stays loaded for the rest of the process.  Returns false, with the dynamic
 * linker's reason in *why, if anything is missing.
 */
bool dynlib_load(const char *name, const struct dynlib_call calls[], size_t n,
		 const char **why);

#endif
