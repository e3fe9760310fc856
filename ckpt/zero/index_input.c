/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/zero/index_input.h"

#include <errno.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"

int input_damaged(const struct input *in, const char *what)
{
	return errmsg_set(in->err, -EBADMSG, "is damaged: %s", what);
}

int input_nomem(const struct input *in)
{
	return errmsg_set(in->err, -ENOMEM, "out of memory");
}

const uint8_t *input_bytes(struct input *in, size_t len)
{
	const uint8_t *const p = in->rest.p;

	if (in->ended || len > in->rest.len) {
		in->ended = true;
		return NULL;
	}
	in->rest.p += len;
	in->rest.len -= len;
	return p;
}

uint8_t input_u8(struct input *in)
{
	const uint8_t *const p = input_bytes(in, 1);

	return p ? *p : 0;
}

uint32_t input_u32(struct input *in)
{
	const uint8_t *const p = input_bytes(in, 4);

	return p ? get_le32(p) : 0;
}

uint64_t input_u64(struct input *in)
{
	const uint8_t *const p = input_bytes(in, 8);

	return p ? get_le64(p) : 0;
}

bool input_bool(struct input *in)
{
	const uint8_t v = input_u8(in);

	in->ended |= v > 1;
	return v;
}

size_t input_count(struct input *in, size_t size)
{
	const size_t n = input_u32(in);

	in->ended |= n > in->rest.len / size;
	return in->ended ? 0 : n;
}

struct span input_text(struct input *in)
{
	const size_t len = input_count(in, 1);
	const uint8_t *const p = input_bytes(in, len);

	return (struct span){ p, p ? len : 0 };
}

const char *input_name(struct input *in, struct arena *a)
{
	const struct span s = input_text(in);

	if (!s.p || memchr(s.p, '\0', s.len))
		return NULL;
	return arena_strndup(a, (const char *)s.p, s.len);
}

struct value input_value(const char *s)
{
	return (struct value){ .kind = VALUE_STR,
			       .str = { .p = s, .len = strlen(s) } };
}
