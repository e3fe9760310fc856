/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DYNLIB_H
#define UCKPT_DYNLIB_H

#include <stdbool.h>
#include <stddef.h>

/*
 * A library's table of calls, in members of the same names, is made from a list
 * of them, X(function): DYNLIB_MEMBER declares the members, and DYNLIB_CALL,
 * where a variable `api` is the table, says what to look up.  Some names are
 * macros for others.
 */
#define DYNLIB_MEMBER(function) __typeof__(function) *function;
#define DYNLIB_CALL(function) { DYNLIB_TEXT(function), (void **)&api.function },
#define DYNLIB_TEXT(x) #x

/* A function of a library, and where to store its address. */
struct dynlib_call {
	const char *name;
	void **at;
};

/*
 * Load a library that a program is not linked with, because few machines have it
 * or few runs need it, and look up n functions.  The dynamic linker's own search
 * comes first, then the directories `dirs`, separated by colons.  The library
 * stays loaded for the rest of the process.  Returns false, with the dynamic
 * linker's reason in *why, if anything is missing.
 */
bool dynlib_load(const char *name, const char *dirs,
		 const struct dynlib_call calls[], size_t n, const char **why);

#endif
