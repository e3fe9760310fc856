/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SUGGEST_H
#define UCKPT_SUGGEST_H

#include <stdbool.h>
#include <stddef.h>

struct errmsg;
struct option;

/* Finds the name that a user probably meant by a mistyped one. */

struct suggestion {
	const char *word; /* as typed */
	size_t len;       /* of it */
	const char *name; /* the nearest name so far, or NULL */
	size_t name_len;
	unsigned distance;
};

/* Begin with a word of `len` characters.  Names that differ from it in more than a
 * third of them are not near, nor is anything but itself to a word of one or two. */
struct suggestion suggest_begin(const char *word, size_t len);

/* Consider a name, which must stay valid. */
void suggest_consider(struct suggestion *n, const char *name, size_t len);

/*
 * Describe an argument such as "--nmae=value" that getopt_long has rejected and
 * that is no lack of a value: the options that it abbreviates, or else the nearest
 * one.
 */
void suggest_option(const struct option *options, const char *arg, struct errmsg *out);

#endif
