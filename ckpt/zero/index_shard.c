/* SPDX-License-Identifier: Apache-2.0 */
/* The second half of an index: layouts and shard maps, read back as index_read.c
 * reads what comes before. */
#include "ckpt/zero/index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/dirs/tagdir.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/zero/index_impl.h"
#include "ckpt/zero/index_input.h"

/* --- layouts --------------------------------------------------------------------------- */

/* What shard_build_layout hands to the function that cuts a group. */
struct cutting {
	struct shard_reader r;
	struct input *in;
};

static int get_paddings(struct input *in, size_t n, uint64_t **out)
{
	*out = NULL;
	if (!input_bool(in))
		return 0;
	if (in->ended || n > in->rest.len / 8)
		return input_damaged(in, "paddings");
	*out = malloc((n + 1) * sizeof(**out));
	if (!*out)
		return input_nomem(in);
	for (size_t i = 0; i < n; i++)
		(*out)[i] = input_u64(in);
	return 0;
}

static int cut(const struct shard_reader *r, size_t g, const uint64_t *numel,
	       struct partition *out)
{
	struct input *const in = ((const struct cutting *)r)->in;
	const unsigned ranks = r->layout->spread[g].ranks;
	const size_t n = r->c->groups[g].n;
	uint64_t *padding;
	int rc = get_paddings(in, n, &padding);

	if (rc)
		return rc;
	if (r->c->zero3)
		rc = padding ? -EBADMSG
			     : partition_init_zero3(out, numel, n, ranks);
	else
		rc = partition_init_zero12(out, numel, padding, n, ranks);
	free(padding);
	return rc ? input_damaged(in, "a group's layout") : 0;
}

int index_read_layout(struct input *in, unsigned mp)
{
	struct cutting x = {
		.r = { .c = &in->f->cats[mp],
		       .layout = &in->f->layouts[mp],
		       .file = "the index",
		       .err = in->err },
		.in = in,
	};

	return input_bool(in) ? shard_build_layout(&x.r, cut) : 0;
}

/* --- shards ---------------------------------------------------------------------------- */

/* The file that a tensor of shard `file` lies in; NULL if it cannot. */
static const struct ckfile *
find_file(const struct ckdir *d, const struct ckfile *file, uint32_t swapped)
{
	const struct ckfile *other;

	if (!swapped)
		return file;
	if (swapped > d->nswapped)
		return NULL;
	other = &d->swapped[swapped - 1];
	return d->zero3 && other->id.dp == file->id.dp ? other : NULL;
}

static int read_flat(struct input *in, const struct ckfile *file, struct flat *f)
{
	f->offset = input_u64(in);
	f->swapped = input_u32(in);
	f->numel = input_u64(in);
	f->dtype = (enum dtype)input_u8(in);
	f->requires_grad = input_bool(in);
	file = find_file(in->f->dir, file, f->swapped);
	if (in->ended || f->dtype > DTYPE_OTHER || !file ||
	    !index_lies_within(f->offset, f->numel, f->dtype, file))
		return input_damaged(in, "a tensor of a shard");
	return 0;
}

/* The value of a state whose kind is there. */
static int read_state_value(struct input *in, const struct ckfile *file,
			    struct shard_state *s, uint64_t need, uint64_t most)
{
	const uint8_t *bytes;
	uint64_t bits;
	int rc;

	switch (s->kind) {
	case STATE_FLAT:
		rc = read_flat(in, file, &s->flat);
		if (!rc && (s->flat.numel < need || s->flat.numel > most))
			rc = input_damaged(in, "the size of a state");
		return rc;
	case STATE_TENSOR:
		rc = read_flat(in, file, &s->flat);
		bytes = input_bytes(in, sizeof(s->bytes));
		if (rc || !bytes || s->flat.numel != 1)
			return rc ? rc : input_damaged(in, "a step");
		memcpy(s->bytes, bytes, sizeof(s->bytes));
		return 0;
	case STATE_INT:
		s->i = (int64_t)input_u64(in);
		return 0;
	case STATE_FLOAT:
		bits = input_u64(in);
		memcpy(&s->f, &bits, sizeof(bits));
		return 0;
	}
	return input_damaged(in, "the kind of a state");
}

static int read_state(struct input *in, const struct shard_reader *r, size_t g,
		      const struct ckfile *file, uint64_t need, uint64_t most)
{
	struct shard_group *const group = &r->s->groups[g];
	struct shard_state *const s = &group->states[group->nstates];
	struct value name;

	s->name = input_name(in, &r->s->arena);
	s->kind = (enum state_kind)input_u8(in);
	if (!s->name)
		return input_damaged(in, "a state");
	name = input_value(s->name);
	if (!shard_is_state_name(&name))
		return input_damaged(in, "the name of a state");
	for (size_t i = 0; i < group->nstates; i++)
		if (strcmp(group->states[i].name, s->name) == 0)
			return input_damaged(in, "a state that is there twice");
	group->nstates++;
	return read_state_value(in, file, s, need, most);
}

/* As shard_zero12.c and shard_zero3.c have it. */
static bool is_size_of_group(const struct shard_reader *r, size_t g)
{
	const struct partition *const p = &r->layout->groups[g];
	const uint64_t numel = r->s->groups[g].fp32.numel;

	return numel == p->size ||
	       (!p->zero3 && numel == partition_filled(p, shard_part(r, g)));
}

static int read_group(struct input *in, const struct shard_reader *r, size_t g,
		      const struct ckfile *file)
{
	struct shard_group *const group = &r->s->groups[g];
	const struct partition *const p = &r->layout->groups[g];
	uint64_t need, most;
	size_t n;
	int rc = read_flat(in, file, &group->fp32);

	if (rc)
		return rc;
	group->whole = input_bool(in);
	n = input_u8(in);
	if (in->ended || n > SHARD_STATES_MAX || !is_size_of_group(r, g) ||
	    (group->whole && p->zero3))
		return input_damaged(in, "a group of a shard");
	group->padding = !p->zero3 && !partition_filled(p, shard_part(r, g));
	group->states =
		arena_alloc(&r->s->arena, (n + 1) * sizeof(*group->states));
	if (!group->states)
		return input_nomem(in);
	shard_bound_states(r, g, &need, &most);
	for (size_t i = 0; !rc && i < n; i++)
		rc = read_state(in, r, g, file, need, most);
	return rc;
}

static int read_shard_facts(struct input *in, const struct shard_reader *r,
			    const struct ckfile *file)
{
	struct shard *const s = r->s;
	int rc = 0;

	s->ds_version = input_name(in, &s->arena);
	s->mapping_ignored = input_bool(in);
	if (in->ended || !s->ds_version || r->c->ngroups > in->rest.len / 20)
		return input_damaged(in, "a shard");
	s->groups = arena_alloc(&s->arena,
				(r->c->ngroups + 1) * sizeof(*s->groups));
	if (!s->groups)
		return input_nomem(in);
	s->ngroups = r->c->ngroups;
	for (size_t g = 0; !rc && g < s->ngroups; g++)
		rc = read_group(in, r, g, file);
	return rc;
}

int index_read_shard(struct input *in, size_t i)
{
	const struct index_facts *const f = in->f;
	const struct ckdir *const d = f->dir;
	const unsigned mp = (unsigned)(i / d->dp_degree);
	const unsigned rank = (unsigned)(i % d->dp_degree);
	struct shard *const s = &f->shards[i];
	const struct shard_reader r = {
		.s = s,
		.c = &f->cats[mp],
		.layout = &f->layouts[mp],
		.file = "the index",
		.err = in->err,
	};
	int rc;

	if (!input_bool(in))
		return rank == 0 && r.layout->groups
			       ? input_damaged(in, "the first shard is missing")
			       : 0;
	if (!r.layout->groups)
		return input_damaged(in, "a layout is missing");
	*s = (struct shard){ .rank = rank };
	rc = read_shard_facts(in, &r, &d->optim[i]);
	if (!rc && rank)
		rc = shard_check_equal(&f->shards[i - rank],
				       d->optim[i - rank].name, s,
				       d->optim[i].name, in->err);
	if (rc)
		shard_done(s);
	else
		atomic_store(&f->loaded[i], true);
	return rc;
}
