/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of a checkpoint, on their way to where this rank keeps them.
 *
 * Ranges stored unchanged in a shard are read from the shard, past the page cache if that is faster.
 * Other ranges (computed, packed, on a server, or scattered over many places) are read from the
 * tensor's file, virtual or in a mount.
 *
 * On remote storage each file takes a few requests before its first byte: many tensors are located
 * at once, then uploaded.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/parallel.h"
#include "ckpt/format/cast.h"
#include "ckpt/io/shards.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/load/load_impl.h"
#include "gpu/read/upload.h"
#include "gpu/zero/zero.h"

/* Tensors that are located at once, and are open at the same time. */
#define AT_ONCE 128

/* This rank's fragment of a tensor. */
struct item {
	const struct gpt2_param *p;
	struct fragment f;         /* of the tensor */
	float *to;                 /* destination of the fragment */
	const char *state;         /* NULL: the masters */
	struct naming_tensor want; /* the expected tensor */
	struct load_tensor *t;     /* NULL: not found */
	struct errmsg missing;     /* the reason */
	/* Rows are read in another order than the checkpoint's args say. */
	bool other_qkv;
};

struct batch {
	struct load *l;
	struct item items[AT_ONCE];
	size_t n;
};

/* Set the form that the checkpoint should have. */
static void expect(const struct load *l, const struct naming *n, struct item *m)
{
	const struct gpt2_param *const p = m->p;
	const bool cut = l->cut;

	naming_tensor(&m->want, n, cut ? l->z->model : &l->whole,
		      cut ? p : &l->whole.params[p->number]);
}

static int other_model(const struct load *l, const struct item *m, struct errmsg *err)
{
	const struct naming_tensor *const want = &m->want;
	const struct tensor *t = &m->t->tensor;
	char shape[64], mine[64];

	if (t->ndim == 2)
		snprintf(shape, sizeof(shape), "%" PRIu64 " x %" PRIu64, t->shape[0], t->shape[1]);
	else
		snprintf(shape, sizeof(shape), "%" PRIu64 " elements", t->numel);
	snprintf(mine, sizeof(mine), want->ndim == 2 ? "%" PRIu64 " x %" PRIu64 : "%" PRIu64,
		 want->shape[0], want->shape[1]);
	return errmsg_set(err, -EINVAL,
			  "%s: checkpoint of another model: %s has %s, this model's has %s",
			  l->got->path, want->name, shape, mine);
}

/* The token embedding may be padded, in the checkpoint or in this model. */
static bool fits_padded(const struct load *l, const struct item *m)
{
	const struct gpt2_param *const p = m->p;
	const struct tensor *t = &m->t->tensor;
	const uint64_t width = p->shape[1], rows = t->numel / width;

	if (p->number != GPT2_WTE || l->cut || t->numel % width ||
	    (t->ndim > 1 && t->shape[1] != width))
		return false;
	return rows <= p->whole_shape[0] ||
	       (l->metadata.original_vocab && l->metadata.original_vocab <= p->whole_shape[0]);
}

/* Does the tensor have the expected form?  Of flat tensors only the number of elements is known. */
static int check_form(const struct load *l, const struct item *m, struct errmsg *err)
{
	const struct tensor *t = &m->t->tensor;
	const struct naming_tensor *const want = &m->want;
	bool same = t->numel == want->numel;

	if (!cast_knows(t->dtype))
		return errmsg_set(err, -ENOTSUP, "%s: %s is no tensor of real numbers",
				  l->got->path, want->name);
	if (t->ndim > 1)
		same = t->ndim == want->ndim && t->shape[0] == want->shape[0] &&
		       t->shape[1] == want->shape[1];
	return same || fits_padded(l, m) ? 0 : other_model(l, m, err);
}

/*
 * Rows of the embedding that belong to tokens, as stored in the checkpoint.  If it is not stored:
 * all rows if this model adds padding, else 0 (unknown).
 */
static uint64_t find_vocab_rows(const struct load *l, const struct item *m)
{
	const uint64_t rows = m->t->tensor.numel / m->p->shape[1];
	const uint64_t original = l->metadata.original_vocab;

	if (original)
		return original < rows || l->cut ? original : rows;
	return rows < m->want.shape[0] ? rows : 0;
}

/*
 * Elements of the tensor that the parameter uses.  If the vocabularies are padded differently, only
 * the unpadded rows, as in a universal checkpoint, which strips the padding.
 */
static uint64_t usable(const struct load *l, const struct item *m)
{
	const uint64_t have = m->t->tensor.numel;
	const uint64_t width = m->p->shape[1];
	const uint64_t vocab_rows = l->metadata.original_vocab;

	return have != m->want.numel && vocab_rows && vocab_rows < have / width ? vocab_rows * width
										: have;
}

/* Find the order of the rows of query_key_value. */
static int find_rows(const struct load *l, struct item *m, struct errmsg *err)
{
	const unsigned ranks = l->metadata.tensor_ranks;
	struct naming n = l->metadata.naming;

	if (!m->want.qkv)
		return 0;
	/* The sorted rows of a universal tree show their order. */
	m->other_qkv = l->metadata.told_qkv && n.qkv != l->metadata.told_qkv &&
		       !(l->o->universal && m->t->sorted_thirds);
	if (m->t->sorted_thirds) {
		n.qkv = NAMING_QKV_THIRDS;
		expect(l, &n, m);
		return 0;
	}
	if (n.qkv == NAMING_QKV_UNKNOWN)
		return errmsg_set(err, -EINVAL,
				  "%s: does not tell the order of the rows of %s; give --qkv_order",
				  l->got->path, m->want.name);
	if (n.qkv != NAMING_QKV_THIRDS || ranks <= 1)
		return 0;
	if (l->whole.config.n_head % ranks)
		return errmsg_set(
			err, -EINVAL,
			"%s: was saved by %u tensor-parallel ranks, which do not divide %u attention heads",
			l->got->path, ranks, l->whole.config.n_head);
	/* Thirds per rank, one rank after the other, are like rows by head with large heads. */
	m->want.heads = ranks;
	m->want.head_dim = l->whole.config.n_embd / ranks;
	return 0;
}

/* Does a run continue another one, both in the file and at the destination? */
static bool continues(const struct load_run *last, const struct load_run *run)
{
	return !last->zero && !run->zero && last->file.name == run->file.name &&
	       last->dtype == run->dtype && last->direct == run->direct &&
	       last->off + last->n * dtype_size(last->dtype) == run->off &&
	       last->to + last->n == run->to;
}

static int add_run(struct load_tensor *t, const struct load_run *run, struct errmsg *err)
{
	struct load_run *const last = t->nruns ? &t->runs[t->nruns - 1] : NULL;

	if (last && continues(last, run)) {
		last->n += run->n;
		return 0;
	}
	if (!array_reserve(&t->runs, &t->cap, t->nruns + 1, sizeof(*t->runs)))
		return errmsg_nomem(err, NULL);
	t->runs[t->nruns++] = *run;
	return 0;
}

/*
 * If the first elements of a run of the tensor's file are in a shard that has a descriptor, make it
 * a run of that shard, and shorten it to those elements; otherwise shorten it to the elements that
 * are not.  The shard stays open until the tensor ends.  Elements are read in the shard's type, and
 * converted on upload.  A mount's shard that cannot be opened here (a path of another machine, a
 * file of another user) is read through the mount.
 */
static int locate(struct load_tensor *t, struct load_run *run, struct errmsg *err)
{
	const size_t size = dtype_size(run->dtype);
	struct shards *const shards = t->l->shards;
	struct extent_walk w;
	struct shard_map map;
	int rc;

	if (!t->extents.n)
		return 0;
	w = extent_walk(&t->extents, run->off, run->n * size);
	extent_next(&w);
	run->n = w.len / size;
	if (!run->n)
		return errmsg_set(err, -EIO, "%s: an element spans two extents", t->file.name);
	run->zero = w.e->kind == EXTENT_ZERO;
	if (w.e->kind != EXTENT_SHARD)
		return 0;
	if (!array_reserve(&t->used, &t->used_cap, t->nused + 1, sizeof(*t->used)))
		return errmsg_nomem(err, NULL);
	rc = shards_use(shards, w.e->shard, &map, err);
	if (rc)
		return !t->l->table && access(shards_path(shards, w.e->shard), R_OK) ? 0 : rc;
	t->used[t->nused++] = w.e->shard;
	if (map.fd < 0) /* in a pack or on a server */
		return 0;
	run->file = (struct source){ .name = shards_path(shards, w.e->shard),
				     .fd = map.fd,
				     .size = shards_id(shards, w.e->shard)->size,
				     .id = *shards_id(shards, w.e->shard) };
	run->direct = !t->l->table;
	run->dtype = extent_is_cast(w.e) ? w.e->dtype : run->dtype;
	run->off = extent_is_cast(w.e) ? extent_cast_from(w.e, w.skip) : w.from;
	return 0;
}

int load_tensor_find(struct load_tensor *t, uint64_t first, size_t n, float *to, struct errmsg *err)
{
	int rc = 0;

	assert(first + n <= t->tensor.numel);
	while (n && !rc) {
		struct load_run run = {
			.file = t->file,
			.dtype = t->tensor.dtype,
			.off = t->at + first * dtype_size(t->tensor.dtype),
			.n = n,
			.to = to,
		};

		rc = locate(t, &run, err) ?: add_run(t, &run, err);
		first += run.n;
		to += run.n;
		n -= run.n;
	}
	return rc;
}

/* Find `n` elements of the tensor, from `first` on; the tensor has `have` elements.  Elements that
 * the checkpoint lacks are zero. */
static int find_run(struct item *m, uint64_t first, uint64_t n, uint64_t have, float *to,
		    struct errmsg *err)
{
	const uint64_t there = first < have ? have - first : 0;
	const uint64_t some = there < n ? there : n;
	const struct load_run zeros = { .to = to + some, .n = (size_t)(n - some), .zero = true };
	const int rc = some < n ? add_run(m->t, &zeros, err) : 0;

	return rc || !some ? rc : load_tensor_find(m->t, first, (size_t)some, to, err);
}

/* Find this rank's fragment of the tensor: in one piece, or in several if it is not contiguous in
 * the whole parameter. */
static int find_fragment(const struct load *l, struct item *m, struct errmsg *err)
{
	const struct fragment *const f = &m->f;
	const uint64_t have = usable(l, m);
	uint64_t at, n, i;
	int rc = 0;

	assert(f->first + f->numel <= m->p->numel);
	if (l->cut)
		return find_run(m, f->first, f->numel, have, m->to, err);
	for (i = 0; i < f->numel && !rc; i += n) {
		n = gpt2_whole_run(m->p, f->first + i, f->numel - i, &at);
		rc = find_run(m, at, n, have, m->to + i, err);
	}
	return rc;
}

/* Does the checkpoint have it in an order other than this program's? */
static bool is_arranged(const struct item *m)
{
	return m->want.transposed || m->want.heads;
}

static int find_content(const struct load *l, struct item *m, struct errmsg *err)
{
	const int rc = check_form(l, m, err) ?: find_rows(l, m, err);

	return rc || is_arranged(m) ? rc : find_fragment(l, m, err);
}

static void load_tensor_free(struct load_tensor *t)
{
	if (!t)
		return;
	while (t->nused)
		shards_unuse(t->l->shards, t->used[--t->nused]);
	source_close(&t->file);
	extent_done(&t->extents);
	free(t->used);
	free(t->runs);
	free(t);
}

/* Find one tensor.  A missing one is no error yet. */
static int find_item(void *ctx, size_t i, struct errmsg *err)
{
	struct batch *const b = ctx;
	struct item *const m = &b->items[i];
	struct load *const l = b->l;
	struct load_tensor *const t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return errmsg_nomem(err, NULL);
	t->l = l;
	t->name = m->want.name;
	t->file.fd = -1;
	expect(l, &l->metadata.naming, m);
	rc = l->table ? load_table_begin(t, m->state, &m->missing)
		      : load_universal_begin(t, m->state, &m->missing);
	if (rc) {
		load_tensor_free(t);
		if (rc != -ENOENT)
			*err = m->missing;
		return rc == -ENOENT ? 0 : rc;
	}
	m->t = t;
	return find_content(l, m, err);
}

int load_tensor_send(struct load *l, const struct load_tensor *t, struct backend *b,
		     struct upload *q)
{
	int rc = 0;

	for (size_t i = 0; i < t->nruns && !rc; i++) {
		const struct load_run *const run = &t->runs[i];
		const size_t len = run->n * dtype_size(run->dtype);

		if (run->zero) {
			b->ops->zero(b, run->to, run->n * sizeof(*run->to));
			continue;
		}
		l->got->bytes += len;
		l->got->direct += run->direct ? len : 0;
		rc = upload_add(q, &run->file, run->off, len, run->dtype, run->to, l->err);
	}
	return rc;
}

static int take_missing(struct load *l, const struct item *m)
{
	*l->err = m->missing;
	if (!m->state)
		return -EINVAL; /* the checkpoint is of another model */
	if (!l->o->ignore_missing)
		return -ENOENT;
	if (!l->got->missing++)
		l->got->first = m->missing;
	return 0;
}

static int send_item(struct load *l, struct item *m)
{
	if (!m->t)
		return take_missing(l, m);
	if (m->p->number == GPT2_WTE)
		l->got->vocab_rows = find_vocab_rows(l, m);
	if (m->other_qkv)
		l->got->told_qkv = l->metadata.told_qkv;
	return is_arranged(m) ? load_arranged_send(l, m->t, &m->want, m->p, &m->f, m->to)
			      : load_tensor_send(l, m->t, l->z->backend, l->upload);
}

/* Find the tensors of a batch, and upload them.  Empties it. */
static int load_batch(struct batch *b)
{
	struct load *const l = b->l;
	const unsigned width = parallel_width() / l->z->world->local_size;
	int rc = parallel_far(b->n, width ? width : 1, find_item, b, l->err);

	for (size_t i = 0; i < b->n && !rc; i++)
		rc = send_item(l, &b->items[i]);
	if (!rc)
		rc = upload_finish(l->upload, l->err);
	for (size_t i = 0; i < b->n; i++)
		load_tensor_free(b->items[i].t);
	b->n = 0;
	return rc;
}

int load_is_param(const struct load *l, const char *param, struct errmsg *err)
{
	for (size_t i = 0; i < l->whole.nparams; i++)
		if (strcmp(l->tensors[i].name, param) == 0)
			return 0;
	return errmsg_set(
		err, -EINVAL,
		"%s: checkpoint of another model: it has %s, which this model, a GPT-2, lacks",
		l->got->path, param);
}

int load_missing(const struct load *l, const char *param, const char *state, struct errmsg *err)
{
	if (state)
		return errmsg_set(err, -ENOENT, "%s: has no %s of %s", l->got->path, state, param);
	return errmsg_set(
		err, -ENOENT,
		"%s: checkpoint of another model: it lacks %s, which this model, a GPT-2, has",
		l->got->path, param);
}

/* Check the checkpoint before the first tensor is read; by rank 0. */
static int check(const struct load *l)
{
	const int rc = l->table ? load_table_check(l, l->err) : load_universal_check(l, l->err);

	if (rc || l->o->no_optimizer || l->got->has_updates || l->o->ignore_missing)
		return rc;
	return errmsg_set(
		l->err, -ENOENT,
		"%s: the optimizer's step is missing; --ignore_missing_optim starts with fresh optimizer state",
		l->got->path);
}

static int add_item(struct batch *b, size_t i, const char *state, float *part)
{
	const struct zero *const z = b->l->z;
	const struct fragment f = zero_fragment(z, i);

	if (!f.numel)
		return 0;
	b->items[b->n++] = (struct item){
		.p = &z->model->params[i], .f = f, .to = part + f.start, .state = state
	};
	return b->n == AT_ONCE ? load_batch(b) : 0;
}

int load_tensors(struct load *l)
{
	struct zero *z = l->z;
	const struct {
		const char *name;
		float *part;
	} states[] = { { NULL, z->master },
		       { "exp_avg", z->exp_avg },
		       { "exp_avg_sq", z->exp_avg_sq } };
	const size_t nstates = l->o->no_optimizer ? 1 : COUNT(states);
	struct batch *const b = calloc(1, sizeof(*b));
	int rc = 0;

	if (!b)
		return errmsg_nomem(l->err, NULL);
	b->l = l;
	if (z->world->rank == 0)
		rc = check(l);
	for (size_t i = 0; i < z->model->nparams && !rc; i++)
		for (size_t k = 0; k < nstates && !rc; k++)
			rc = add_item(b, i, states[k].name, states[k].part);
	if (!rc)
		rc = load_batch(b);
	free(b);
	return rc;
}
