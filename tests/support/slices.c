/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/slices.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/make/literal.h"
#include "tests/support/unit.h"

void slices_set(struct slices *l, size_t t, const uint64_t *shape, unsigned ndim)
{
	uint64_t numel = 1;

	for (unsigned i = 0; i < ndim; i++) {
		l->shapes[t][i] = shape[i];
		numel *= shape[i];
	}
	l->v[t] = (struct slice){ .ndim = ndim, .shape = l->shapes[t], .numel = numel };
	l->slices[t] = &l->v[t];
}

void slices_parse(struct slices *l, struct mkpt *m, const char *text)
{
	const struct value_seq *all = value_items(literal_value(m, text));

	*l = (struct slices){ .n = all->n };
	for (size_t t = 0; t < all->n; t++) {
		const struct value_seq *s = value_items(all->v[t]);
		uint64_t shape[SLICES_DIMS_MAX];

		for (size_t i = 0; s && i < s->n; i++)
			shape[i] = (uint64_t)s->v[i]->i;
		if (s)
			slices_set(l, t, shape, (unsigned)s->n);
	}
}

int slices_geometry(struct geometry *g, const struct merge *rule, const char *name,
		    struct slices *l, struct errmsg *err)
{
	struct param p = {
		.name = name, .merge = *rule, .slices = l->slices, .nslices = (unsigned)l->n
	};

	for (unsigned t = 0; !p.first && t < p.nslices; t++)
		p.first = p.slices[t];
	return geometry_init(g, &p, err);
}

void slices_check_invariants(const struct slices *l, const struct geometry *g)
{
	uint64_t at = 0, numel = 1;

	for (unsigned i = 0; i < g->ndim; i++)
		numel *= g->shape[i];
	assert_int_equal(g->numel, numel);
	assert_int_equal(g->nsources, l->n);
	if (!numel)
		return;
	assert_int_equal(g->rows * g->row_len, numel);
	for (size_t i = 0; i < g->nsegs; i++) {
		const struct geometry_segment *s = &g->segs[i];

		assert_int_equal(s->at, at);
		assert_true(s->len > 0);
		at += s->len;
		assert_true(s->source < l->n);
		assert_non_null(l->slices[s->source]);
		if (g->rows == 1) {
			assert_true(s->from + s->len <= l->v[s->source].numel);
			continue;
		}
		/* A row of the source contains all elements used for a row. */
		assert_true(s->from + s->len <= g->stride[s->source]);
		assert_true(g->rows * g->stride[s->source] <= l->v[s->source].numel);
	}
	assert_int_equal(at, g->row_len);
}

struct element *slices_expand(const struct slices *l, const struct geometry *g)
{
	struct element *v = calloc(g->numel + 1, sizeof(*v));

	slices_check_invariants(l, g);
	assert_non_null(v);
	for (uint64_t r = 0; g->numel && r < g->rows; r++)
		for (size_t i = 0; i < g->nsegs; i++) {
			const struct geometry_segment *s = &g->segs[i];

			for (uint64_t k = 0; k < s->len; k++)
				v[r * g->row_len + s->at + k] =
					(struct element){ s->source,
							  r * g->stride[s->source] + s->from + k };
		}
	return v;
}

void slices_check(const struct slices *l, const struct geometry *g, const char *runs,
		  const char *what)
{
	struct element *v = slices_expand(l, g);
	uint64_t i = 0;

	for (const char *s = runs; *s; s += strspn(s, " ")) {
		char *end;
		const unsigned long t = strtoul(s, &end, 10);
		unsigned long a, b;

		assert_int_equal(*end, ':');
		s = end + 1;
		a = b = strtoul(s, &end, 10);
		if (*end == '-')
			b = strtoul(end + 1, &end, 10);
		s = end;
		for (; a <= b; a++, i++)
			if (i >= g->numel || v[i].source != t || v[i].index != a)
				fail_msg("%s: element %llu is %u:%llu, not %lu:%lu",
					 what, (unsigned long long)i, v[i].source,
					 (unsigned long long)v[i].index, t, a);
	}
	if (i != g->numel)
		fail_msg("%s: %llu elements, not %llu", what, (unsigned long long)g->numel,
			 (unsigned long long)i);
	free(v);
}
