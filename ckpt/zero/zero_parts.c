/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the elements of slices in the shards of data-parallel ranks, and loads these shards'
 * maps. */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/zero/checkpoint.h"

/* Return the number, in extents, of the file with a shard's tensor: the shard itself, or a file
 * from NVMe. */
static uint32_t file_number(const struct zero_checkpoint *r, unsigned shard,
			    const struct param_state *st)
{
	const struct zero_dir *d = &r->dir;

	return st->swapped ? (uint32_t)(d->swapped - d->files) + st->swapped - 1 : shard;
}

/* Return the model-parallel rank of a group's rank. */
static unsigned lane_of(const struct slice *s, const struct rank_stripe *stripe, unsigned rank)
{
	return s->mp - s->mp % stripe->lanes + rank % stripe->lanes;
}

/* Load the shards that have parts [first, end) of a slice's group. */
static int load_parts(struct zero_checkpoint *r, const struct slice *s, unsigned ep, unsigned first,
		      unsigned end, struct errmsg *err)
{
	const struct rank_stripe *stripe = &r->layouts[s->mp].stripe[s->group];
	const unsigned lanes = stripe->lanes, step = rank_stripe_step(stripe);
	unsigned again = 1; /* the same lane has another part this many parts later */
	int rc = 0;

	while (again * step % lanes)
		again++;
	for (unsigned i = first; !rc && i < first + again && i < end; i++) {
		const unsigned last = i + (end - 1 - i) / again * again;
		const unsigned rank = rank_stripe_rank(stripe, ep, i);

		rc = zero_load_shards(r, lane_of(s, stripe, rank), rank / lanes,
				      rank_stripe_rank(stripe, ep, last) / lanes + 1,
				      again * step / lanes, err);
	}
	return rc;
}

/* Append the elements of a run that part `part` of its group holds.  `whole`: the
 * part keeps parameters whole. */
static int add_part(const struct zero_checkpoint *r, const struct part_run *run, unsigned part,
		    bool whole, struct extent_map *out, struct errmsg *err)
{
	const struct slice *s = run->slice;
	const struct partitioning *l = &r->layouts[s->mp];
	const struct partition *p = &l->groups[s->group];
	const struct rank_stripe *stripe = &l->stripe[s->group];
	const unsigned rank = rank_stripe_rank(stripe, run->ep, part);
	const unsigned number = zero_shard_number(r, lane_of(s, stripe, rank), rank / stripe->lanes);
	const struct flat_group *g = &r->shards[number].groups[s->group];
	const struct param_state *flat = shard_find_state(g, run->state->name);
	const struct fragment f =
		whole ? partition_whole(p, s->index, part) : partition_fragment(p, s->index, part);
	const uint64_t first = run->first > f.first ? run->first : f.first;
	const uint64_t run_end = run->first + run->numel;
	const uint64_t end = f.first + f.numel < run_end ? f.first + f.numel : run_end;
	const uint64_t at = f.start + (first - f.first);

	if (!flat && g->states.refused)
		return errmsg_set(err, g->states.refused_rc, "%s", g->states.refused);
	if (!flat || flat->kind != STATE_FLAT || f.start + f.numel > flat->numel)
		return errmsg_set(err, -EBADMSG, "%s: %s of parameter %s is %s",
				  r->dir.optim[number].path, run->state->name, s->name,
				  flat && flat->kind == STATE_FLAT ? "too short" : "missing");
	if (flat->dtype != run->state->dtype)
		return errmsg_set(err, -EBADMSG,
				  "%s: %s of parameter %s is %s, but %s on other ranks",
				  r->dir.optim[number].path, run->state->name, s->name,
				  dtype_name(flat->dtype), dtype_name(run->state->dtype));
	return extent_add_cast(out, end - first, file_number(r, number, flat),
			       flat->offset + at * dtype_size(flat->dtype), flat->dtype, run->to)
		       ? 0
		       : errmsg_nomem(err, s->name);
}

/* Find the parts of the group that contain elements of a run: [*part, *end).  Returns whether each
 * part keeps parameters whole, so that the other ranks have replicas. */
static bool find_parts(const struct zero_checkpoint *r, const struct part_run *run, unsigned *part,
		       unsigned *end)
{
	const struct slice *s = run->slice;
	const bool whole =
		!param_state_is_master(run->state) &&
		zero_shard(r, s->mp, 0)->groups[s->group].replicated;

	partition_ranks_of(&r->layouts[s->mp].groups[s->group], s->index, run->first, run->numel,
			   part, end);
	if (whole && *part < *end)
		*end = *part + 1;
	return whole;
}

int zero_parts(struct checkpoint *c, const struct part_run *v, size_t n,
		      struct extent_map *out, struct gathers *gathers, struct errmsg *err)
{
	struct zero_checkpoint *r = (struct zero_checkpoint *)c;
	unsigned first = UINT_MAX, last = 0, part, end;
	int rc = n ? zero_load_shards(r, v->slice->mp, 0, 1, 1, err) : 0;

	if (rc || !n)
		return rc;
	for (size_t i = 0; i < n; i++) {
		find_parts(r, &v[i], &part, &end);
		if (part == end)
			continue;
		first = part < first ? part : first;
		last = end > last ? end : last;
	}
	(void)gathers;
	if (first >= last)
		return 0;
	rc = load_parts(r, v->slice, v->ep, first, last, err);
	for (size_t i = 0; !rc && out && i < n; i++) {
		const bool whole = find_parts(r, &v[i], &part, &end);

		for (; !rc && part < end; part++)
			rc = add_part(r, &v[i], part, whole, out, err);
	}
	return rc;
}
