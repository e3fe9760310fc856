/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads one state of one parameter from a file of a universal checkpoint, in the forms that
 * view_universal.c lists.  A tensor that the converter has copied from a module is still a view of
 * its storage, so its elements may be in another order, or lie apart.
 */
#include "ckpt/format/state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/value.h"

static void set_tensor(struct state *s, const struct tensor *t, uint64_t at)
{
	s->t = *t;
	s->at = at;
	s->run = tensor_run(t);
}

static int open_tensor(struct state *s, const struct value *v, bool bare,
		       struct errmsg *err)
{
	struct tensor t;
	uint64_t at;
	const int rc = ptfile_tensor(&s->pt, v, "tensor", &t, &at, err);

	if (rc)
		return rc;
	set_tensor(s, &t, at);
	s->flat = bare && t.ndim == 1;
	return 0;
}

static int open_number(struct state *s, const struct value *v,
		       struct errmsg *err)
{
	uint64_t bits;
	int64_t i;

	if (value_get_int(v, &i)) {
		tensor_init(&s->t, DTYPE_I64, NULL, 0, false);
		bits = (uint64_t)i;
	} else if (v->kind == VALUE_FLOAT) {
		tensor_init(&s->t, DTYPE_F64, NULL, 0, false);
		memcpy(&bits, &v->f, sizeof(bits));
	} else {
		return errmsg_set(err, -EBADMSG, "%s: holds a %s, expected a tensor or a number",
				  s->pt.src.name, value_kind_name(v));
	}
	put_le64(s->number, bits);
	s->is_number = true;
	return 0;
}

int state_open_source(struct state *s, const struct source *src,
		      struct errmsg *err)
{
	const struct value *param, *v;
	int rc;

	*s = (struct state){ 0 };
	rc = ptfile_open_source(&s->pt, src, err);
	if (rc)
		return rc;
	param = value_find(s->pt.root, "param");
	v = param ? param : s->pt.root;
	rc = tensor_is(v) ? open_tensor(s, v, !param, err) :
			    open_number(s, v, err);
	if (rc)
		state_close(s);
	return rc;
}

void state_init(struct state *s, const struct source *src,
		const struct tensor *t, uint64_t at)
{
	*s = (struct state){ .pt.src = *src };
	set_tensor(s, t, at);
}

void state_init_number(struct state *s, enum dtype dtype, const uint8_t bytes[16])
{
	*s = (struct state){ .pt.src.fd = -1, .is_number = true };
	tensor_init(&s->t, dtype, NULL, 0, false);
	memcpy(s->number, bytes, sizeof(s->number));
}

void state_close(struct state *s)
{
	ptfile_close(&s->pt);
	free(s->path);
	s->path = NULL;
}

uint64_t state_end(const struct state *s)
{
	if (s->is_number || !s->t.numel)
		return 0;
	/* Strides are not negative. */
	return s->at +
	       (tensor_place(&s->t, s->t.numel - 1) + 1) * dtype_size(s->t.dtype);
}

int state_read(const struct state *s, uint64_t first, size_t n, void *out,
	       struct errmsg *err)
{
	const size_t item = dtype_size(s->t.dtype);
	uint8_t *to = out;
	int rc = 0;

	assert(first <= s->t.numel && n <= s->t.numel - first);
	if (s->is_number) {
		memcpy(to, s->number, n * item);
		return 0;
	}
	while (n && !rc) {
		const uint64_t left = s->run - first % s->run;
		const size_t some = n < left ? n : (size_t)left;

		rc = source_read(&s->pt.src, to, some * item,
				 s->at + tensor_place(&s->t, first) * item, err);
		to += some * item;
		first += some;
		n -= some;
	}
	return rc;
}
