/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer shards of ZeRO stage 3: deepspeed/runtime/zero/stage3.py.
 *
 *   fp32_flat_groups[sg]                   master weights of a sub-group
 *   optimizer_state_dict: {state: {sg: {step, exp_avg, ...}}, param_groups}
 *
 * A sub-group's flat tensor on rank r has q = ceil(numel / W) slots for each
 * parameter, in the order of param_shapes[sg]: elements [r*q, (r+1)*q) of the
 * parameter, and uninitialised memory beyond its end.
 *
 * The tensors of a sub-group on NVMe have no elements here, see shard_nvme.c.
 */
#include "ckpt/zero/shard.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/pickle/value.h"

static int build_partition(const struct shard_reader *r, size_t g,
			   const uint64_t *numel, struct partition *out)
{
	const int rc = partition_init(out, true, numel, NULL, r->c->groups[g].n,
				      r->layout->stripe[g].ranks);

	return rc ? ERRMSG_FILE(r, rc, "sub-group %zu: %s", g, strerror(-rc)) :
		    0;
}

static int check_partition_count(const struct shard_reader *r)
{
	int64_t count;

	if (value_get_int(value_find(r->dict, KEY_PARTITION_COUNT), &count) &&
	    count != r->layout->ranks)
		return ERRMSG_FILE(r, -EBADMSG,
				   "partitioned over %" PRId64 " ranks, but there"
				   " are %u optimizer shards", count,
				   r->layout->ranks);
	return 0;
}

/* --- experts -------------------------------------------------------------- */

/* Does `v` list the ranks over which the sub-group is cut? */
static bool are_ranks(const struct value *v, const struct rank_stripe *s,
		      unsigned which)
{
	const struct value_seq *const list = value_items(v);
	int64_t rank;

	if (!list || list->n != s->ranks)
		return false;
	for (unsigned i = 0; i < s->ranks; i++)
		if (!value_get_int(list->v[i], &rank) ||
		    rank != rank_stripe_rank(s, which, i))
			return false;
	return true;
}

/* AutoEP: ds_zero_partition_groups[sg] = {partition_count, partition_rank,
 * partition_ranks, ...}.  Without it every sub-group is cut over all ranks. */
static int check_partition_group(const struct shard_reader *r, size_t g)
{
	const struct rank_stripe *const s = &r->layout->stripe[g];
	const struct value *const all =
		value_find(r->dict, "ds_zero_partition_groups");
	const struct value *const v = value_item(all, g);
	int64_t count, rank;
	unsigned which;

	if (!value_items(all) && s->degree == 1)
		return 0;
	if (value_get_int(value_find(v, "partition_count"), &count) &&
	    value_get_int(value_find(v, "partition_rank"), &rank) &&
	    count == s->ranks &&
	    rank == rank_stripe_part(s, r->s->rank, &which) &&
	    are_ranks(value_find(v, "partition_ranks"), s, which))
		return 0;
	return ERRMSG_FILE(r, -EBADMSG, "ds_zero_partition_groups does not say"
			   " that sub-group %zu (%.100s) is cut over %u ranks,"
			   " one in %u", g, shard_group_name(r, g), s->ranks,
			   rank_stripe_step(s));
}

static int fail_size(const struct shard_reader *r, size_t g, uint64_t numel,
		     uint64_t need)
{
	return ERRMSG_FILE(r, -EBADMSG,
			   "sub-group %zu (%.100s, ...) has %" PRIu64
			   " elements on this rank, its parameters need %" PRIu64
			   ": was it partitioned over another number of ranks"
			   " (sequence parallel)?", g, shard_group_name(r, g),
			   numel, need);
}

int shard_read_zero3(struct shard_reader *r)
{
	const struct value_seq *const fp32 =
		value_find_items(r->dict, KEY_FP32_FLAT_GROUPS);
	const struct value *const state = value_find_path(
		r->dict, KEY_OPTIMIZER_STATE_DICT, "state", NULL);
	int rc = check_partition_count(r);

	if (rc)
		return rc;
	if (!fp32 || fp32->n != r->c->ngroups)
		return ERRMSG_FILE(r, -EBADMSG,
				   KEY_FP32_FLAT_GROUPS " holds %zu sub-groups,"
				   " param_shapes %zu", fp32 ? fp32->n : 0, r->c->ngroups);
	rc = shard_check_state(r, state) ?: shard_build_layout(r, build_partition);
	for (size_t g = 0; !rc && g < r->c->ngroups; g++) {
		const uint64_t size = r->layout->groups[g].size;
		struct flat *const flat = &r->s->groups[g].fp32;

		rc = check_partition_group(r, g) ?:
		     shard_read_flat(r, fp32->v[g], KEY_FP32_FLAT_GROUPS, g,
				     flat);
		if (!rc && !flat->numel && size)
			rc = shard_find_nvme(r, fp32->v[g], KEY_FP32_FLAT_GROUPS,
					     g, size, flat);
		if (!rc && flat->numel != size)
			rc = fail_size(r, g, flat->numel, size);
		rc = rc ?: shard_read_states(r, g,
					     shard_find_group_state(state, g),
					     size, size);
	}
	return rc;
}
