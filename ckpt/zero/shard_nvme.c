/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of an optimizer shard that are in separate files: a sub-group of stage 3 on NVMe
 * (offload_optimizer, and at least 1 MiB large).
 *
 * In the shard these tensors have no elements, but keep the attribute ds_id,
 * from which DeepSpeed's swapper makes the file's name
 * (swap_tensor/optimizer_utils.py): <first parameter>_<last parameter> for
 * master weights, with <state>- before it for states. The file has the elements
 * as in memory, padded to the swapper's unit of I/O: KIB per thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "ckpt/base/checked.h"
#include "ckpt/zero/shard_impl.h"

#define KIB 1024
#define THREADS_MAX 4096

/* The unit of I/O according to ds_config. */
static uint64_t find_unit(const struct shard_reader *r)
{
	const struct value *aio = value_find_path(r->pt->root, KEY_DS_CONFIG, "aio", NULL);
	int64_t n;

	/* the key until 2024 */
	if (!value_get_int(value_find(aio, "intra_op_parallelism"), &n) &&
	    !value_get_int(value_find(aio, "thread_count"), &n))
		n = 1;
	return KIB * (uint64_t)(n > 0 && n <= THREADS_MAX ? n : 1);
}

static int check_size(const struct shard_reader *r, const struct ckpt_file *f, const char *what,
		      size_t g, uint64_t need)
{
	const uint64_t unit = find_unit(r);
	uint64_t bytes;

	if (!checked_mul(need, dtype_size(DTYPE_F32), &bytes) ||
	    !checked_add(bytes, unit - 1, &bytes))
		return errmsg_set(r->err, -EOVERFLOW, "%s: overflows", f->path);
	bytes -= bytes % unit;
	if (f->file.size == bytes)
		return 0;
	return errmsg_set(r->err, -EBADMSG,
			  "%s: has %" PRIu64 " bytes, but the %" PRIu64
			  " elements of %s of group %zu (%.100s, ...) take %" PRIu64,
			  f->path, f->file.size, need, what, g, flat_group_name(r, g), bytes);
}

int shard_find_nvme(const struct shard_reader *r, const struct value *v, const char *what, size_t g,
		    uint64_t need, struct param_state *st)
{
	const struct zero_dir *d = r->dir;
	const struct value *id = tensor_attribute(v, "ds_id");
	const struct ckpt_file *f;
	char name[256];

	if (!value_is_cstr(id) || id->str.len > 200)
		return ERRMSG_FILE(
			r, -EBADMSG,
			"%s of group %zu (%.100s, ...) has no elements on this rank, and does not"
			" say to which file it was offloaded",
			what, g, flat_group_name(r, g));
	if (d->mp_degree > 1)
		return ERRMSG_FILE(
			r, -ENOTSUP,
			"was offloaded to NVMe, which is not supported together with tensor parallelism");
	snprintf(name, sizeof(name), "%s" NAMES_SWAP_SUFFIX, id->str.p);
	f = zero_dir_find(d, &(struct ckname){ .kind = CKPT_FILE_SWAPPED, .dp = r->s->rank }, name);
	if (!f)
		return errmsg_set(r->err, -EBADMSG,
				  "%s/" NAMES_SWAP_DIR
		"/rank%02u/%s: is missing: %s of group %zu (%.100s, ...) was offloaded to NVMe",
				  d->path, r->s->rank, name, what, g, flat_group_name(r, g));
	if (st->dtype != DTYPE_F32)
		return ERRMSG_FILE(r, -ENOTSUP, "%s of group %zu was offloaded to NVMe as %s", what,
				   g, dtype_name(st->dtype));
	st->swapped = (uint32_t)(f - d->swapped) + 1;
	st->offset = 0;
	st->numel = need;
	return check_size(r, f, what, g, need);
}
