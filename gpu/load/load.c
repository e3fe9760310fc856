/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resuming.  A checkpoint stores the elements of parameters by name, and each rank fetches its own:
 * the partitioning of the saving ranks makes no difference.
 */
#include "gpu/load/load.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/system.h"
#include "ckpt/foreign/loaders.h"
#include "ckpt/format/names.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/table/user_rules.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/load/load_impl.h"
#include "gpu/model/gpt2.h"
#include "gpu/read/upload.h"
#include "gpu/zero/zero.h"

/* Pieces on their way at once, of all ranks of a machine: two per processor, one that is being read
 * and one that is being copied, and at least as many as keep a disk busy.  Remote storage gets more.
 */
#define READS_MIN 8u
#define READS_MAX 32u
#define READS_FAR 64u

static bool has_rules(const struct load *l)
{
	return l->o->rules->preset.info || l->o->rules->file.info;
}

int load_open_table(struct load *l)
{
	struct uckpt *const u = l->o->u;
	const char *const path = l->got->path;

	return loaders_open(u, path, detect(u, path, NULL), NULL, has_rules(l) ? l->o->rules : NULL,
			    &l->table, l->err)
		       ?: l->table->ops->check(l->table, false, l->err);
}

static int load_open(struct load *l)
{
	const struct gpt2 *const m = &l->whole;
	const unsigned tensor = l->z->model->part.size;
	int rc = 0;

	l->tensors = calloc(m->nparams, sizeof(*l->tensors));
	if (!l->tensors)
		return errmsg_nomem(l->err, NULL);
	for (size_t i = 0; i < m->nparams; i++)
		naming_tensor(&l->tensors[i], &l->metadata.naming, m, &m->params[i]);
	if (l->o->universal)
		return load_look_at_tree(l);
	if (!l->table)
		rc = load_open_table(l);
	if (rc)
		return rc;
	l->shards = l->table->shards;
	/* The user's rules say how slices are merged. */
	l->cut = tensor > 1 && l->table->tp == tensor && !has_rules(l);
	return 0;
}

/*
 * Add rules for Megatron.  Concatenated slices of query_key_value are not the whole weight if they
 * are in thirds, and a checkpoint of one rank does not say which weights are cut in columns.
 */
static int add_preset(struct load *l)
{
	struct load_metadata *const f = &l->metadata;
	struct user_rules *const rules = l->o->rules;

	if (f->naming.family == NAMING_HF || l->o->universal)
		return 0;
	if (rules->preset.name) {
		f->naming.qkv = names_ends_with(rules->preset.name, "by-head") ? NAMING_QKV_HEADS
									       : NAMING_QKV_THIRDS;
		return 0;
	}
	if (f->naming.qkv == NAMING_QKV_UNKNOWN)
		return errmsg_set(
			l->err, -EINVAL,
			"%s: does not tell the order of the rows of query_key_value; give --qkv_order",
			l->got->path);
	checkpoint_close(l->table);
	l->table = NULL;
	return user_rules_preset(rules,
				 f->naming.qkv == NAMING_QKV_THIRDS ? "megatron-qkv-thirds"
								    : "megatron-qkv-by-head",
				 l->err);
}

/* Rank 0 locates the checkpoint, so that all ranks load the same one. */
static int load_find_checkpoint(struct load *l)
{
	struct comm *c = l->z->world;
	int rc = 0;

	if (c->rank == 0)
		rc = load_find(l->o, l->got->path, l->err) ?: load_metadata(l);
	rc = comm_agree(c, rc, l->err);
	if (rc)
		return rc;
	comm_broadcast(c, l->got, sizeof(*l->got), 0);
	comm_broadcast(c, &l->metadata, sizeof(l->metadata), 0);
	return add_preset(l);
}

/* Broadcast results that only some ranks have. */
static void share_result(struct load *l)
{
	struct comm *const c = l->z->world;
	struct load_result *const got = l->got;
	double missing = (double)got->missing, told = got->told_qkv;

	/* Rank 0 has read the beginning of the embedding. */
	comm_broadcast(c, &got->vocab_rows, sizeof(got->vocab_rows), 0);
	comm_agree(c, got->missing ? -ENOENT : 0, &got->first);
	comm_sum_double(c, &missing, 1);
	comm_max_double(c, &told, 1);
	got->missing = (uint64_t)missing;
	got->told_qkv = (enum naming_qkv)told;
}

/* Return this rank's share of `all` for the machine, within `least` and `most`. */
static unsigned share(const struct comm *c, unsigned all, unsigned least, unsigned most)
{
	const unsigned n = all / c->local_size;

	return n < least ? least : n > most ? most : n;
}

static int open_upload(struct load *l, struct backend *b, struct upload **q)
{
	const struct comm *const c = l->z->world;
	const unsigned reads = share(c, 2 * parallel_width(), READS_MIN, READS_MAX);

	return upload_new(q, b, reads, share(c, READS_FAR, reads, READS_FAR), l->err);
}

/* Open the upload for tensors that are rearranged before they go to the device. */
static int open_host_upload(struct load *l)
{
	int rc;

	if (l->metadata.naming.family == NAMING_HF)
		return 0;
	rc = backend_cpu_new(&l->host, DTYPE_F32, 0, l->err);
	return rc ? rc : open_upload(l, l->host, &l->host_upload);
}

static void close_uploads(struct load *l)
{
	upload_free(l->upload);
	upload_free(l->host_upload);
	if (l->host)
		l->host->ops->destroy(l->host);
}

static int load_all(struct load *l)
{
	const double begun = clock_seconds();
	const int rc = open_upload(l, l->z->backend, &l->upload)
			       ?: load_open(l)
			       ?: open_host_upload(l)
			       ?: load_tensors(l);

	close_uploads(l);
	l->got->seconds = clock_seconds() - begun;
	return comm_agree(l->z->world, rc, l->err);
}

int load_checkpoint(struct zero *z, const struct load_options *o, struct load_result *got,
		    struct errmsg *err)
{
	struct load l = { .z = z, .o = o, .got = got, .err = err };
	int rc;

	*got = (struct load_result){ 0 };
	rc = comm_agree(z->world, gpt2_init(&l.whole, &z->model->config, err), err);
	if (rc)
		return rc;
	rc = load_find_checkpoint(&l) ?: load_all(&l);
	checkpoint_close(l.table);
	mount_close(&l.mount);
	free(l.tensors);
	gpt2_done(&l.whole);
	if (rc)
		return rc;
	got->has_scaler = got->has_scaler && z->backend->dtype == DTYPE_F16;
	z->optimizer = l.metadata.optimizer;
	if (got->has_updates)
		z->step = l.metadata.updates;
	share_result(&l);
	return zero_publish(z, err);
}
