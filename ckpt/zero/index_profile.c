/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The form of a profile in an index.  Numbers of groups and parameters follow from
 * the table of the rank, and partitions from its shapes and the alignment paddings.
 *
 *   whether there is one; if so
 *   facts	of the shard
 *   paddings	of each group: whether there are any; if so, of each parameter
 *   groups	master weights and states of each
 *
 * Count up INDEX_VERSION (index.c) with every change of the form or of what is read
 * from shards.
 */
#include "ckpt/zero/index_profile.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/zero/index_stream.h"
#include "ckpt/zero/shard.h"

/* Bytes that a state takes at least. */
enum { STATE_LEN = 5 };

INDEX_KNOWS(flat, 32);
INDEX_KNOWS(shard_state, 80);
INDEX_KNOWS(shard_group, 56);
INDEX_KNOWS(shard, 72);

/* --- layout ----------------------------------------------------------------------- */

/* The elements of padding after parameter i. */
static uint64_t padding_after(const struct partition *p, size_t i)
{
	const uint64_t next = i + 1 < p->n ? p->start[i + 1] : p->used;

	return next - p->start[i] - p->numel[i];
}

static void write_paddings(struct index_stream *x, const struct partition *p)
{
	bool padded = false;

	if (p->zero3)
		return;
	for (size_t i = 0; i < p->n; i++)
		padded |= padding_after(p, i) != 0;
	index_bool(x, &padded);
	for (size_t i = 0; padded && i < p->n; i++)
		bytebuf_add_le64(x->out, padding_after(p, i));
}

struct profile_reader {
	struct shard_reader r; /* the first: build_partition is passed it */
	struct index_stream x;
};

static int build_zero12(struct index_stream *x, const uint64_t *numel, size_t n,
			unsigned ranks, struct partition *out,
			struct errmsg *err)
{
	const uint64_t *padding = NULL;
	struct arena a = { 0 };
	bool padded = false;
	int rc;

	index_bool(x, &padded);
	if (padded)
		index_dims(x, &a, &padding, n);
	rc = x->failed ? index_failed(x, err)
		       : partition_init_zero12(out, numel, padding, n, ranks);
	arena_done(&a);
	return rc;
}

static int build_partition(const struct shard_reader *r, size_t g,
			   const uint64_t *numel, struct partition *out)
{
	struct profile_reader *const p = (struct profile_reader *)r;
	const size_t n = r->c->groups[g].n;
	const unsigned ranks = r->layout->stripe[g].ranks;
	const int rc =
		r->c->zero3 ? partition_init_zero3(out, numel, n, ranks)
			    : build_zero12(&p->x, numel, n, ranks, out, r->err);

	if (rc == -ENOMEM)
		return errmsg_nomem(r->err, NULL);
	return rc == -EOVERFLOW ? index_damaged(r->err, "sizes of parameters")
				: rc;
}

/* --- the shard -------------------------------------------------------------------- */

static void index_facts(struct index_stream *x, struct shard *s)
{
	index_bool(x, &s->mapping_ignored);
	index_name(x, &s->arena, &s->ds_version);
}

static void index_flat(struct index_stream *x, struct flat *f)
{
	index_u64(x, &f->offset);
	index_u32(x, &f->swapped);
	index_u64(x, &f->numel);
	index_dtype(x, &f->dtype);
	index_bool(x, &f->requires_grad);
}

static void index_kind(struct index_stream *x, enum state_kind *v)
{
	uint8_t byte = (uint8_t)*v;

	index_u8(x, &byte);
	if (!index_reads(x))
		return;
	x->failed |= byte > STATE_FLOAT;
	*v = x->failed ? STATE_INT : (enum state_kind)byte;
}

static void index_float(struct index_stream *x, double *v)
{
	uint64_t bits;

	memcpy(&bits, v, sizeof(bits));
	index_u64(x, &bits);
	memcpy(v, &bits, sizeof(bits));
}

static void index_state(struct index_stream *x, struct arena *a,
			struct shard_state *st)
{
	index_name(x, a, &st->name);
	index_kind(x, &st->kind);
	switch (st->kind) {
	case STATE_FLAT:
		index_flat(x, &st->flat);
		break;
	case STATE_TENSOR:
		index_flat(x, &st->flat);
		for (size_t i = 0; i < sizeof(st->bytes); i++)
			index_u8(x, &st->bytes[i]);
		break;
	case STATE_INT:
		index_i64(x, &st->i);
		break;
	case STATE_FLOAT:
		index_float(x, &st->f);
		break;
	}
}

static void index_group(struct index_stream *x, struct arena *a,
			struct shard_group *g)
{
	index_flat(x, &g->fp32);
	index_bool(x, &g->replicated);
	index_count(x, &g->nstates, STATE_LEN, SHARD_STATES_MAX);
	g->states = index_array(x, a, g->states, g->nstates, sizeof(*g->states));
	for (size_t i = 0; g->states && i < g->nstates; i++) {
		struct shard_state st = g->states[i];

		index_state(x, a, &st);
		if (index_reads(x))
			g->states[i] = st;
	}
}

/* --- checks ----------------------------------------------------------------------- */

/* Does a flat tensor lie within the file that it is said to be in? */
static bool is_in_file(const struct shard_reader *r, const struct flat *f)
{
	const struct tagdir *const d = r->dir;
	const struct tag_file *file = &d->optim[(size_t)r->c->mp * d->dp_degree];
	uint64_t bytes;

	if (f->swapped) {
		if (!r->c->zero3 || d->mp_degree > 1 ||
		    f->swapped > d->nswapped || f->dtype != DTYPE_F32)
			return false;
		file = &d->swapped[f->swapped - 1];
		if (file->id.dp != r->s->rank)
			return false;
	}
	return checked_mul(f->numel, dtype_size(f->dtype), &bytes) &&
	       checked_range(f->offset, bytes, file->file.size);
}

static bool is_state(const struct shard_reader *r, const struct shard_state *st,
		     uint64_t need, uint64_t most)
{
	const struct flat *const f = &st->flat;

	if (!shard_is_state_name(st->name))
		return false;
	switch (st->kind) {
	case STATE_FLAT:
		return f->numel >= need && f->numel <= most && is_in_file(r, f);
	case STATE_TENSOR:
		return f->numel == 1 && !f->swapped &&
		       dtype_size(f->dtype) <= sizeof(st->bytes) &&
		       is_in_file(r, f);
	case STATE_INT:
	case STATE_FLOAT:
		return true;
	}
	return false;
}

static bool are_states(const struct shard_reader *r,
		       const struct shard_group *g, uint64_t need, uint64_t most)
{
	for (size_t i = 0; i < g->nstates; i++) {
		if (!is_state(r, &g->states[i], need, most))
			return false;
		for (size_t k = 0; k < i; k++)
			if (strcmp(g->states[i].name, g->states[k].name) == 0)
				return false;
	}
	return true;
}

/* Check group g as the readers of the stages do, and fill in what follows from it. */
static int check_group(const struct shard_reader *r, size_t g)
{
	const struct partition *const p = &r->layout->groups[g];
	struct shard_group *const group = &r->s->groups[g];
	const unsigned part = shard_part(r, g);
	const uint64_t filled = partition_filled(p, part);
	uint64_t need, most;

	if (group->fp32.numel != filled && group->fp32.numel != p->size)
		return index_damaged(r->err, "the size of a group");
	if (!is_in_file(r, &group->fp32))
		return index_damaged(r->err, "the place of a group");
	if (group->replicated && p->zero3)
		return index_damaged(r->err, "a group's states");
	group->padding = !p->zero3 && filled == 0;
	shard_state_bounds(p, part, group->replicated, &need, &most);
	return are_states(r, group, need, most)
		       ? 0
		       : index_damaged(r->err, "an optimizer state");
}

/* --- the whole -------------------------------------------------------------------- */

void index_profile_write(const struct shard *s, const struct layout *l,
			 struct bytebuf *out)
{
	struct index_stream x = { .out = out };
	bool present = s != NULL;
	struct shard facts;

	index_bool(&x, &present);
	if (!s)
		return;
	assert(s->ngroups == l->ngroups);
	facts = *s;
	index_facts(&x, &facts);
	for (size_t g = 0; g < l->ngroups; g++)
		write_paddings(&x, &l->groups[g]);
	for (size_t g = 0; g < s->ngroups; g++) {
		struct shard_group group = s->groups[g];

		index_group(&x, &facts.arena, &group);
	}
	assert(!x.failed);
}

static int read_profile(struct profile_reader *p)
{
	struct shard *const s = p->r.s;
	int rc;

	index_facts(&p->x, s);
	if (p->x.failed)
		return index_failed(&p->x, p->r.err);
	rc = shard_build_layout(&p->r, build_partition);
	if (rc)
		return rc;
	s->ngroups = p->r.c->ngroups;
	s->groups = index_array(&p->x, &s->arena, NULL, s->ngroups,
				sizeof(*s->groups));
	for (size_t g = 0; !rc && !p->x.failed && g < s->ngroups; g++) {
		index_group(&p->x, &s->arena, &s->groups[g]);
		rc = p->x.failed ? 0 : check_group(&p->r, g);
	}
	return p->x.failed ? index_failed(&p->x, p->r.err) : rc;
}

int index_profile_read(const struct tagdir *dir, const struct rank_params *c,
		       struct shard *s, struct layout *l, struct span *bytes,
		       struct errmsg *err)
{
	struct profile_reader p = {
		.r = { .s = s,
		       .dir = dir,
		       .c = c,
		       .layout = l,
		       .file = "the index",
		       .err = err },
		.x = { .in = *bytes },
	};
	bool present = false;
	int rc;

	assert(!l->groups);
	*s = (struct shard){ 0 }; /* of data-parallel rank 0 */
	index_bool(&p.x, &present);
	rc = p.x.failed ? index_failed(&p.x, err)
	     : present  ? read_profile(&p)
			: 0;
	if (rc) {
		shard_done(s);
		layout_done(l);
		return rc;
	}
	*bytes = p.x.in;
	return present;
}
