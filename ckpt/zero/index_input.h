/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INDEX_INPUT_H
#define UCKPT_INDEX_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytes.h"
#include "ckpt/pickle/value.h"

struct arena;
struct errmsg;
struct index_facts;

/*
 * What has not been read yet of an index.  Reading past the end gives zeros and
 * is remembered, as are a bool that is none and a count that cannot be: it is
 * enough to ask for `ended` before what was read is used.
 */
struct input {
	const struct index_facts *f;
	struct span rest;
	bool ended;
	struct errmsg *err;
};

/* Tell what is wrong: -EBADMSG, -ENOMEM. */
int input_damaged(const struct input *in, const char *what);
int input_nomem(const struct input *in);

const uint8_t *input_bytes(struct input *in, size_t len); /* NULL at the end */
uint8_t input_u8(struct input *in);
uint32_t input_u32(struct input *in);
uint64_t input_u64(struct input *in);
bool input_bool(struct input *in);

/* A number of things that take at least `size` bytes each. */
size_t input_count(struct input *in, size_t size);

struct span input_text(struct input *in);

/* A text without NUL as a string; NULL if it is none, or without memory. */
const char *input_name(struct input *in, struct arena *a);

/* A name as a value, for the checks that take one. */
struct value input_value(const char *s);

#endif
