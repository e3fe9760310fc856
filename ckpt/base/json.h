/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_JSON_H
#define UCKPT_JSON_H

#include <cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct source;

/* Nesting of arrays and objects; a safetensors header has three levels. */
#define JSON_DEPTH_MAX 16

/* Values in a text, of which cJSON makes some 80 bytes each: the header of a
 * file of 250,000 matrices has so many. */
#define JSON_VALUES_MAX (1u << 21)

/*
 * Parse bytes [off, off + len) of a file.  Stricter than cJSON: UTF-8, one
 * value, no name twice in an object, and no string with a NUL, which would
 * end it in C.  Messages name the source; -EBADMSG, -E2BIG over a limit.  The
 * caller deletes the result.
 */
int json_read(const struct source *src, uint64_t off, size_t len, cJSON **out,
	      struct errmsg *err);

/* A whole number that cJSON, whose numbers are doubles, has not rounded. */
bool json_get_count(const cJSON *v, uint64_t *out);

#endif
