/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resuming.  A checkpoint is a source of parameter elements by name, from which
 * each rank fetches what it keeps: how the saving ranks had partitioned them
 * makes no difference.
 */
#include "gpu/load/load.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/dirs/tagdir.h"
#include "ckpt/sys/clock.h"
#include "ckpt/sys/parallel.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/load/load_impl.h"
#include "gpu/model/gpt2.h"
#include "gpu/read/upload.h"
#include "gpu/zero/zero.h"

/* Concurrent reads by all ranks of a machine: one per processor for copies from
 * the page cache, and at least as many requests as keep a disk busy. */
#define READS_MIN 4u
#define READS_MAX 16u

struct load {
	struct zero *z;
	const struct load_options *o;
	struct load_result *got;
	struct load_metadata metadata;
	struct load_source *source;
	struct gpt2 whole;
	struct upload *upload;
	struct errmsg *err;
};

/* --- one tensor ------------------------------------------------------------ */

/* The shape of `p` as the source has it. */
static const uint64_t *shape_of(const struct load *l, const struct gpt2_param *p)
{
	return l->source->cut ? p->shape : p->whole_shape;
}

static uint64_t numel_of(const struct load *l, const struct gpt2_param *p)
{
	return l->source->cut ? p->numel : p->whole_numel;
}

static int other_model(const struct load *l, const struct gpt2_param *p)
{
	const uint64_t *const have = shape_of(l, p);
	const struct tensor *t = &l->source->tensor;
	char shape[64], mine[64];

	if (t->ndim == 2)
		snprintf(shape, sizeof(shape), "%" PRIu64 " x %" PRIu64,
			 t->shape[0], t->shape[1]);
	else
		snprintf(shape, sizeof(shape), "%" PRIu64 " elements", t->numel);
	snprintf(mine, sizeof(mine),
		 p->ndim == 2 ? "%" PRIu64 " x %" PRIu64 : "%" PRIu64, have[0],
		 have[1]);
	return errmsg_set(
		l->err, -EINVAL,
		"%s: checkpoint of another model: %s has %s, this model's has %s",
		l->source->path, p->name, shape, mine);
}

/* The token embedding may be padded, in the checkpoint or in this model. */
static bool fits_padded(const struct load *l, const struct gpt2_param *p)
{
	const struct tensor *t = &l->source->tensor;
	const uint64_t width = p->shape[1], rows = t->numel / width;

	if (p->number != GPT2_WTE || l->source->cut || t->numel % width ||
	    (t->ndim > 1 && t->shape[1] != width))
		return false;
	return rows <= p->whole_shape[0] ||
	       (l->metadata.original_vocab &&
		l->metadata.original_vocab <= p->whole_shape[0]);
}

/* Does the tensor being read have the shape of `p`?  Flat tensors have only a
 * number of elements. */
static int check_shape(const struct load *l, const struct gpt2_param *p)
{
	const struct tensor *t = &l->source->tensor;
	const uint64_t *const shape = shape_of(l, p);
	bool same = t->numel == numel_of(l, p);

	if (t->ndim > 1)
		same = t->ndim == p->ndim && t->shape[0] == shape[0] &&
		       t->shape[1] == shape[1];
	return same || fits_padded(l, p) ? 0 : other_model(l, p);
}

/*
 * Rows of the embedding being read that stand for tokens: as many as the
 * checkpoint says.  If it does not say, all of them if this model adds padding,
 * else 0: unknown.
 */
static uint64_t find_vocab_rows(const struct load *l, const struct gpt2_param *p)
{
	const uint64_t rows = l->source->tensor.numel / p->shape[1];
	const uint64_t original = l->metadata.original_vocab;

	if (original)
		return original < rows || l->source->cut ? original : rows;
	return rows < shape_of(l, p)[0] ? rows : 0;
}

/*
 * Elements of the tensor being read that belong to `p`.  If the vocabularies
 * are padded differently, the unpadded rows alone, as in a universal
 * checkpoint, which strips the padding.
 */
static uint64_t usable(const struct load *l, const struct gpt2_param *p)
{
	const uint64_t have = l->source->tensor.numel, width = p->shape[1];
	const uint64_t vocab_rows = l->metadata.original_vocab;

	return have != numel_of(l, p) && vocab_rows && vocab_rows < have / width
		       ? vocab_rows * width
		       : have;
}

/* Send `n` elements of the tensor being read, from `first` on, of which it has
 * `have` in all.  Elements that the checkpoint lacks are zero. */
static int send_run(struct load *l, uint64_t first, uint64_t n, uint64_t have,
		    float *to)
{
	struct load_source *s = l->source;
	struct backend *b = l->z->backend;
	const uint64_t there = first < have ? have - first : 0;
	const uint64_t some = there < n ? there : n;

	if (some < n)
		b->ops->zero(b, to + some, (n - some) * sizeof(*to));
	if (!some)
		return 0;
	return s->ops->send(s, first, some, to, l->upload, l->err);
}

/* Send this rank's fragment of the tensor being read to its place in `part`: in
 * one piece, or in as many as it lies in within the whole parameter. */
static int send_fragment(struct load *l, const struct gpt2_param *p,
			 const struct fragment *f, float *part)
{
	const uint64_t have = usable(l, p);
	uint64_t at, n, i;
	int rc = 0;

	assert(f->first + f->numel <= p->numel);
	if (l->source->cut)
		return send_run(l, f->first, f->numel, have, part + f->start);
	for (i = 0; i < f->numel && !rc; i += n) {
		n = gpt2_whole_run(p, f->first + i, f->numel - i, &at);
		rc = send_run(l, at, n, have, part + f->start + i);
	}
	return rc;
}

/* The tensor is missing, with error `rc` and a message. */
static int take_missing(struct load *l, const char *state, int rc)
{
	if (!state)
		return -EINVAL; /* it is another model's checkpoint */
	if (!l->o->ignore_missing)
		return rc;
	if (!l->got->missing++)
		l->got->first = *l->err;
	return 0;
}

static int load_tensor(struct load *l, size_t i, const char *state, float *part)
{
	const struct gpt2_param *p = &l->z->model->params[i];
	const struct fragment f = zero_fragment(l->z, i);
	int rc;

	assert(f.start + f.numel <= l->z->local);
	if (!f.numel)
		return 0;
	rc = l->source->ops->begin(l->source, p->name, state, l->err);
	if (rc == -ENOENT)
		return take_missing(l, state, rc);
	if (!rc)
		rc = check_shape(l, p);
	if (!rc && p->number == GPT2_WTE)
		l->got->vocab_rows = find_vocab_rows(l, p);
	if (!rc)
		rc = send_fragment(l, p, &f, part);
	l->source->ops->end(l->source);
	return rc;
}

/* --- all of them ----------------------------------------------------------- */

int load_known(const struct load_source *s, const char *param,
	       struct errmsg *err)
{
	const struct gpt2 *m = s->whole;

	for (size_t i = 0; i < m->nparams; i++)
		if (strcmp(m->params[i].name, param) == 0)
			return 0;
	return errmsg_set(err, -EINVAL,
			  "%s: checkpoint of another model: this one has no %s",
			  s->path, param);
}

static int load_tensors(struct load *l)
{
	struct zero *z = l->z;
	const struct {
		const char *name;
		float *part;
	} states[] = { { "exp_avg", z->exp_avg },
		       { "exp_avg_sq", z->exp_avg_sq } };
	int rc = 0;

	if (z->world->rank == 0)
		rc = l->source->ops->check(l->source, l->err);
	for (size_t i = 0; i < z->model->nparams && !rc; i++) {
		rc = load_tensor(l, i, NULL, z->master);
		for (size_t k = 0; k < 2 && !rc && !l->o->no_optimizer; k++)
			rc = load_tensor(l, i, states[k].name, states[k].part);
	}
	return rc;
}

/* --- the checkpoint -------------------------------------------------------- */

static const struct load_ops *kind_of(const struct load *l)
{
	if (l->o->universal)
		return &load_universal_ops;
	return tagdir_is_zero_tag(l->got->path) ? &load_zero_ops
						: &load_stage0_ops;
}

static int load_open_source(struct load *l)
{
	const struct load_ops *ops = kind_of(l);
	struct load_source *s = calloc(1, ops->size);
	int rc;

	if (!s)
		return errmsg_nomem(l->err, NULL);
	s->ops = ops;
	s->path = l->got->path;
	s->model = l->z->model;
	s->whole = &l->whole;
	s->data_parallel = l->z->comm->size;
	rc = ops->open(s, l->err);
	if (rc)
		free(s);
	else
		l->source = s;
	return rc;
}

static void load_close_source(struct load *l)
{
	l->source->ops->close(l->source);
	free(l->source);
}

/* Rank 0 locates the checkpoint, so that all ranks load the same one. */
static int load_find_checkpoint(struct load *l)
{
	struct comm *c = l->z->world;
	int rc = 0;

	if (c->rank == 0) {
		rc = load_find(l->o, l->got->path, l->err);
		if (!rc)
			rc = load_metadata(l->o, l->got->path, &l->metadata,
					   l->err);
	}
	rc = comm_agree(c, rc, l->err);
	if (rc)
		return rc;
	comm_broadcast(c, l->got->path, sizeof(l->got->path), 0);
	comm_broadcast(c, &l->metadata, sizeof(l->metadata), 0);
	return 0;
}

/* Adopt the hyperparameters that the checkpoint stores. */
static void take_hyperparameters(struct load *l)
{
	const struct load_metadata *f = &l->metadata;
	struct optimizer_config *o = &l->z->optimizer;
	const struct {
		double value, *to;
	} numbers[] = {
		{ l->o->scheduled ? NAN : f->lr, &o->lr },
		{ f->beta1, &o->beta1 },
		{ f->beta2, &o->beta2 },
		{ f->eps, &o->eps },
		{ f->weight_decay, &o->weight_decay },
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
		if (!isnan(numbers[i].value))
			*numbers[i].to = numbers[i].value;
}

static void take_metadata(struct load *l)
{
	const struct load_metadata *f = &l->metadata;

	l->got->step = f->step;
	l->got->skipped = f->skipped;
	l->got->has_scaler = f->has_scaler && l->z->backend->dtype == DTYPE_F16;
	l->got->scaler = f->scaler;
	take_hyperparameters(l);
	l->got->has_updates = f->has_updates;
	if (!f->has_updates)
		return;
	l->z->step = f->updates;
	l->z->optimizer.flavor = (enum optimizer_flavor)f->flavor;
}

/* Share the first failure of GPUDirect Storage with all ranks. */
static void share_gds_failure(struct load *l)
{
	struct errmsg *e = &l->got->gds_failure;

	comm_agree(l->z->world, *e->text ? -EIO : 0, e);
}

/* Count the missing states of all ranks, and share the first one. */
static void sum_missing(struct load *l)
{
	struct comm *c = l->z->world;
	double n = (double)l->got->missing;

	comm_agree(c, l->got->missing ? -ENOENT : 0, &l->got->first);
	comm_sum_double(c, &n, 1);
	l->got->missing = (uint64_t)n;
}

static unsigned reads_at_once(const struct comm *c)
{
	const unsigned n = parallel_width() / c->local_size;

	return n < READS_MIN ? READS_MIN : n > READS_MAX ? READS_MAX : n;
}

static int load_all(struct load *l)
{
	const double begun = clock_seconds();
	int rc = gpt2_init(&l->whole, &l->z->model->config, l->err);

	if (!rc)
		rc = load_open_source(l);
	if (!rc) {
		rc = upload_new(&l->upload, l->z->backend,
				reads_at_once(l->z->world), l->err);
		if (!rc)
			rc = load_tensors(l);
		if (!rc)
			rc = upload_finish(l->upload, l->err);
		l->got->bytes = l->source->bytes;
		l->got->direct = l->source->direct;
		if (l->upload) {
			l->got->gds =
				upload_gds(l->upload, &l->got->gds_failure);
			upload_free(l->upload);
		}
		load_close_source(l);
	}
	gpt2_done(&l->whole);
	l->got->seconds = clock_seconds() - begun;
	return comm_agree(l->z->world, rc, l->err);
}

int load_checkpoint(struct zero *z, const struct load_options *o,
		    struct load_result *got, struct errmsg *err)
{
	struct load l = { .z = z, .o = o, .got = got, .err = err };
	int rc;

	*got = (struct load_result){ 0 };
	rc = load_find_checkpoint(&l);
	if (!rc)
		rc = load_all(&l);
	if (rc)
		return rc;
	take_metadata(&l);
	/* Rank 0 has read the beginning of the embedding. */
	comm_broadcast(z->world, &got->vocab_rows, sizeof(got->vocab_rows), 0);
	sum_missing(&l);
	share_gds_failure(&l);
	return zero_publish(z, err);
}
