/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LIBRARY_H
#define UCTRAIN_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* A function of a library, and where its address belongs. */
struct library_call {
	const char *name;
	void **at;
};

/*
 * Load a library that uctrain is not linked with, since few machines have it or
 * few runs need it, for the rest of the process, and find n calls in it.  False,
 * with the linker's reason in *why, if not all are there.
 */
bool library_load(const char *name, const struct library_call calls[], size_t n,
		  const char **why);

#endif
