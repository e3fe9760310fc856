/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/zero/index_stream.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"

int index_damaged(struct errmsg *err, const char *what)
{
	return errmsg_set(err, -EBADMSG, "is damaged: %s", what);
}

int index_failed(const struct index_stream *x, struct errmsg *err)
{
	assert(x->failed);
	return x->nomem ? errmsg_nomem(err, NULL)
			: index_damaged(err, "it ends too early");
}

/* The next `len` bytes of the input, or NULL. */
static const uint8_t *index_take(struct index_stream *x, size_t len)
{
	const uint8_t *const p = x->in.p;

	if (x->failed || len > x->in.len) {
		x->failed = true;
		return NULL;
	}
	x->in = (struct span){ p + len, x->in.len - len };
	return p;
}

void index_u8(struct index_stream *x, uint8_t *v)
{
	const uint8_t *p;

	if (x->out) {
		bytebuf_add_u8(x->out, *v);
		return;
	}
	p = index_take(x, 1);
	*v = p ? *p : 0;
}

void index_u32(struct index_stream *x, uint32_t *v)
{
	const uint8_t *p;

	if (x->out) {
		bytebuf_add_le32(x->out, *v);
		return;
	}
	p = index_take(x, 4);
	*v = p ? get_le32(p) : 0;
}

void index_u64(struct index_stream *x, uint64_t *v)
{
	const uint8_t *p;

	if (x->out) {
		bytebuf_add_le64(x->out, *v);
		return;
	}
	p = index_take(x, 8);
	*v = p ? get_le64(p) : 0;
}

void index_i64(struct index_stream *x, int64_t *v)
{
	uint64_t bits = (uint64_t)*v;

	index_u64(x, &bits);
	if (!x->out)
		*v = (int64_t)bits;
}

void index_bool(struct index_stream *x, bool *v)
{
	uint8_t byte = *v;

	index_u8(x, &byte);
	x->failed |= byte > 1;
	if (!x->out)
		*v = byte;
}

void index_dtype(struct index_stream *x, enum dtype *v)
{
	uint8_t byte = (uint8_t)*v;

	index_u8(x, &byte);
	if (!index_reads(x))
		return;
	x->failed |= byte > DTYPE_OTHER;
	*v = x->failed ? DTYPE_OTHER : (enum dtype)byte;
}

void index_count(struct index_stream *x, size_t *n, size_t size, size_t most)
{
	uint32_t count = (uint32_t)*n;

	assert(size > 0);
	index_u32(x, &count);
	if (x->out)
		return;
	x->failed |= count > x->in.len / size || count > most;
	*n = x->failed ? 0 : count;
}

void index_span(struct index_stream *x, struct span *s)
{
	index_count(x, &s->len, 1, SIZE_MAX);
	if (x->out)
		bytebuf_add(x->out, s->p, s->len);
	else
		s->p = index_take(x, s->len);
}

void index_name(struct index_stream *x, struct arena *a, const char **s)
{
	struct span text = { 0 };

	if (x->out)
		text = (struct span){ (const uint8_t *)*s, strlen(*s) };
	index_span(x, &text);
	if (x->out)
		return;
	x->failed |= !text.p || memchr(text.p, '\0', text.len);
	*s = arena_strndup(a, (const char *)text.p, x->failed ? 0 : text.len);
	x->nomem |= !*s;
	x->failed |= !*s;
}

void index_dims(struct index_stream *x, struct arena *a, const uint64_t **v,
		size_t n)
{
	uint64_t *const dims = index_array(x, a, *v, n, sizeof(*dims));

	for (size_t i = 0; dims && i < n; i++)
		index_u64(x, &dims[i]);
	*v = dims;
}

void *index_array(struct index_stream *x, struct arena *a, const void *v,
		  size_t n, size_t size)
{
	void *array;

	if (x->out)
		return (void *)v;
	array = x->failed ? NULL : arena_alloc(a, n * size + 1);
	x->nomem |= !x->failed && !array;
	x->failed |= !array;
	return array;
}
