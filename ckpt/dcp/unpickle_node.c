/* SPDX-License-Identifier: Apache-2.0 */
/* The file's bytes, and the nodes that are made of them: both within the limit of memory. */
#include "ckpt/dcp/unpickle_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define READ_FIRST (1u << 20) /* bytes; then twice as many each time */
#define SLAB (64u << 10)      /* bytes of nodes that are allotted at once */

size_t unpickle_most(const struct dcp_pickle *p)
{
	return p->have * DCP_MEMORY_PER_BYTE + DCP_MEMORY_LEAST;
}

/* May so many bytes more be used? */
static bool afford(struct machine *m, size_t more)
{
	const size_t used = m->p->have + m->p->a.used + m->keep->used - m->kept +
			    (m->stack_cap + m->memo_cap) * sizeof(dcp_word);

	if (used + more <= unpickle_most(m->p))
		return true;
	FAIL(m, -E2BIG, "describes too much for its size");
	return false;
}

/* Read on, so that `n` bytes follow. */
static bool need(struct machine *m, uint64_t n)
{
	struct dcp_pickle *const p = m->p;
	size_t want = p->have ? p->have : READ_FIRST;
	uint8_t *more;

	if (m->rc || n <= p->have - m->pos)
		return !m->rc;
	if (n > m->src->size - m->pos) {
		FAIL(m, -EBADMSG, "the pickle ends early");
		return false;
	}
	want = want > m->src->size - p->have ? m->src->size - p->have : want;
	if (p->have + want < m->pos + n)
		want = m->pos + (size_t)n - p->have;
	more = realloc(p->bytes, p->have + want);
	if (!more) {
		m->rc = errmsg_nomem(m->err, m->file);
		return false;
	}
	p->bytes = more;
	m->rc = source_read(m->src, more + p->have, want, p->have, m->err);
	p->have += m->rc ? 0 : want;
	return !m->rc;
}

const uint8_t *unpickle_take(struct machine *m, uint64_t n)
{
	if (!need(m, n))
		return NULL;
	m->pos += (size_t)n;
	return m->p->bytes + m->pos - n;
}

uint64_t unpickle_take_uint(struct machine *m, unsigned width)
{
	const uint8_t *const p = unpickle_take(m, width);
	uint64_t v = 0;

	for (unsigned i = width; p && i-- > 0;)
		v = v << 8 | p[i];
	return v;
}

bool unpickle_grow(struct machine *m, dcp_word **v, size_t *cap, size_t want)
{
	dcp_word *more;
	size_t n = *cap ? *cap : 256;

	if (want <= *cap)
		return true;
	while (n < want)
		n *= 2;
	if (m->rc || !afford(m, (n - *cap) * sizeof(**v)))
		return false;
	more = realloc(*v, n * sizeof(**v));
	if (!more) {
		m->rc = errmsg_nomem(m->err, m->file);
		return false;
	}
	*v = more;
	*cap = n;
	return true;
}

/* Allot a node with so many words; sizes are kept.  NULL after an error. */
struct node *unpickle_node(struct machine *m, enum kind kind, size_t words)
{
	const size_t size = sizeof(struct node) + words * sizeof(dcp_word);
	struct node *x = NULL;

	if (m->rc)
		return NULL;
	if (kind == SIZES || size > SLAB / 8) {
		if (afford(m, size))
			x = arena_alloc(kind == SIZES ? m->keep : &m->p->a,
					size);
	} else {
		if (size > m->slab_left && afford(m, SLAB)) {
			m->slab = arena_alloc(&m->p->a, SLAB);
			m->slab_left = m->slab ? SLAB : 0;
		}
		if (size <= m->slab_left) {
			x = (struct node *)m->slab;
			m->slab += size;
			m->slab_left -= size;
		}
	}
	if (!x)
		m->rc = m->rc ?: errmsg_nomem(m->err, m->file);
	else
		x->kind = (uint8_t)kind;
	return x;
}

/* A node that has been used up is used again, unless it may be met another time. */
void unpickle_recycle(struct machine *m, dcp_word w)
{
	struct node *const x = node_of(w);
	struct node **list;

	if (!x || x->shared)
		return;
	if (x->kind == DICT)
		list = &m->dicts;
	else if (x->kind == TUPLE && x->v[0] < RECYCLED_MAX)
		list = &m->tuples[x->v[0]];
	else
		return;
	if (x->memo)
		m->memo[x->memo - 1] = NONE;
	x->memo = 0;
	x->shared = true; /* until it is used again */
	x->v[0] = (dcp_word)(uintptr_t)*list;
	*list = x;
}

struct node *unpickle_take_recycled(struct node **list)
{
	struct node *const x = *list;

	if (x) {
		*list = (struct node *)(uintptr_t)x->v[0];
		x->shared = false;
	}
	return x;
}

/* Append words to a list or a dict. */
void unpickle_extend(struct machine *m, struct node *x, const dcp_word *v,
		     size_t n)
{
	dcp_word *to = (dcp_word *)(uintptr_t)x->v[AT];
	const size_t had = (size_t)x->v[N], cap = (size_t)x->v[CAP];

	if (had + n > cap) {
		const size_t want = had + n > 2 * cap ? had + n : 2 * cap;

		if (!afford(m, want * sizeof(*to)))
			return;
		to = arena_alloc(&m->p->a, want * sizeof(*to));
		if (!to) {
			m->rc = errmsg_nomem(m->err, m->file);
			return;
		}
		if (had)
			memcpy(to, (void *)(uintptr_t)x->v[AT],
			       had * sizeof(*to));
		x->v[AT] = (dcp_word)(uintptr_t)to;
		x->v[CAP] = want;
	}
	if (n)
		memcpy(to + had, v, n * sizeof(*v));
	x->v[N] += n;
}

void dcp_unpickled_done(struct dcp_pickle *p)
{
	free(p->bytes);
	arena_done(&p->a);
	*p = (struct dcp_pickle){ 0 };
}

const dcp_word *dcp_attributes(dcp_word w, enum dcp_class c)
{
	const struct node *const x = node_of(w);

	return x && x->kind == OBJECT && x->class == c ? x->v : NULL;
}

bool dcp_is_dict(dcp_word w)
{
	const struct node *const x = node_of(w);

	return x && x->kind == DICT;
}

bool dcp_elements(dcp_word w, const dcp_word **v, size_t *n)
{
	const struct node *const x = node_of(w);

	*v = NULL;
	*n = 0;
	if (!x || x->kind == OBJECT || x->kind == SIZES)
		return false;
	*n = (size_t)x->v[N];
	*v = x->kind == TUPLE ? x->v + 1 : (const dcp_word *)(uintptr_t)x->v[AT];
	return true;
}

bool dcp_sizes(dcp_word w, const uint64_t **v, size_t *n)
{
	const struct node *const x = node_of(w);

	if (!x || x->kind != SIZES)
		return false;
	*n = (size_t)x->v[0];
	*v = x->v + 1;
	return true;
}

bool dcp_int_of(dcp_word w, int64_t *out)
{
	*out = (int64_t)w >> TAG_BITS;
	return TAG(w) == INT;
}

bool dcp_count_of(dcp_word w, uint64_t *out)
{
	int64_t i;

	if (!dcp_int_of(w, &i) || i < 0)
		return false;
	*out = (uint64_t)i;
	return true;
}

bool unpickle_text(const struct dcp_pickle *p, dcp_word w, struct dcp_text *out)
{
	if (TAG(w) != TEXT)
		return false;
	out->p = (const char *)p->bytes +
		 (w >> TAG_BITS & ((1u << AT_BITS) - 1));
	out->len = (size_t)(w >> (TAG_BITS + AT_BITS));
	return true;
}

bool dcp_text_of(const struct dcp_pickle *p, dcp_word w, struct dcp_text *out)
{
	return unpickle_text(p, w, out) && !memchr(out->p, '\0', out->len);
}

enum dtype dcp_dtype_of(dcp_word w)
{
	return TAG(w) == GLOBAL ? (enum dtype)(w >> 16) : DTYPE_OTHER;
}
