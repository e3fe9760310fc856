/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/dcp/mutate.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "tests/support/unit.h"

uint64_t mutate_draw(uint64_t *seed, uint64_t n)
{
	*seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (*seed >> 33) % n;
}

uint8_t *mutate_bytes(const uint8_t *bytes, size_t *n, uint64_t seed)
{
	const size_t at = mutate_draw(&seed, *n), to = mutate_draw(&seed, *n);
	uint8_t *b = malloc(*n);
	size_t len = 1 + mutate_draw(&seed, 16);

	assert_non_null(b);
	memcpy(b, bytes, *n);
	len = len < *n - at ? len : *n - at;
	len = len < *n - to ? len : *n - to;
	switch (mutate_draw(&seed, 4)) {
	case 0:
		b[at] = (uint8_t)mutate_draw(&seed, 256);
		break;
	case 1:
		b[at] ^= (uint8_t)(1 << mutate_draw(&seed, 8));
		break;
	case 2:
		memmove(b + to, b + at, len);
		break;
	default:
		*n = at;
	}
	return b;
}

void mutate_collect(struct value *v, struct mutate_nodes *out)
{
	if ((v->kind == VALUE_INT || !out->ints) && out->n < COUNT(out->v))
		out->v[out->n++] = v;
	if (v->kind == VALUE_TUPLE || v->kind == VALUE_LIST)
		for (size_t i = 0; i < v->seq.n; i++)
			mutate_collect(v->seq.v[i], out);
	if (v->kind == VALUE_DICT)
		for (size_t i = 0; i < v->dict.n; i++) {
			mutate_collect(v->dict.v[i].key, out);
			mutate_collect(v->dict.v[i].val, out);
		}
	if (v->kind == VALUE_NEWOBJ && v->obj->state)
		mutate_collect(v->obj->state, out);
	if (v->kind == VALUE_REDUCE)
		mutate_collect(v->obj->args, out);
}
