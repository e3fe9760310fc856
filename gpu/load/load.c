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

#include "ckpt/dirs/names.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/model/user_rules.h"
#include "ckpt/sys/clock.h"
#include "ckpt/sys/parallel.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/load/load_arranged.h"
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
	/* For tensors in another order: to host memory.  NULL if there are
	 * none. */
	struct backend *host;
	struct upload *host_upload;
	struct naming_tensor tensor; /* as it is expected in the source */
	struct errmsg *err;
};

/* --- one tensor ------------------------------------------------------------ */

/* How the source has parameter i. */
static void expect(struct load *l, const struct naming *n, size_t i)
{
	const struct gpt2_param *p = &l->z->model->params[i];
	const bool cut = l->source->cut;

	naming_tensor(&l->tensor, n, cut ? l->z->model : &l->whole,
		      cut ? p : &l->whole.params[p->number]);
}

static int other_model(const struct load *l)
{
	const struct naming_tensor *const want = &l->tensor;
	const struct tensor *t = &l->source->tensor;
	char shape[64], mine[64];

	if (t->ndim == 2)
		snprintf(shape, sizeof(shape), "%" PRIu64 " x %" PRIu64,
			 t->shape[0], t->shape[1]);
	else
		snprintf(shape, sizeof(shape), "%" PRIu64 " elements", t->numel);
	snprintf(mine, sizeof(mine),
		 want->ndim == 2 ? "%" PRIu64 " x %" PRIu64 : "%" PRIu64,
		 want->shape[0], want->shape[1]);
	return errmsg_set(
		l->err, -EINVAL,
		"%s: checkpoint of another model: %s has %s, this model's has %s",
		l->source->path, want->name, shape, mine);
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
	const struct naming_tensor *const want = &l->tensor;
	bool same = t->numel == want->numel;

	if (t->ndim > 1)
		same = t->ndim == want->ndim && t->shape[0] == want->shape[0] &&
		       t->shape[1] == want->shape[1];
	return same || fits_padded(l, p) ? 0 : other_model(l);
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
	return rows < l->tensor.shape[0] ? rows : 0;
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

	return have != l->tensor.numel && vocab_rows && vocab_rows < have / width
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

static bool is_qkv(const struct gpt2 *m, const struct gpt2_param *p)
{
	const size_t at = (size_t)(p - m->params) - m->units[p->unit].first;

	return p->unit != GPT2_UNIT_EMBED && p->unit != gpt2_unit_last(m) &&
	       (at == GPT2_C_ATTN_WEIGHT || at == GPT2_C_ATTN_BIAS);
}

/* Find the order of the rows of query_key_value, whose tensor has been begun:
 * *ranks as in struct load_arranged. */
static int find_rows(struct load *l, size_t i, unsigned *ranks)
{
	const struct load_source *s = l->source;
	struct naming n = s->naming;

	*ranks = 0;
	if (n.family == NAMING_HF ||
	    !is_qkv(l->z->model, &l->z->model->params[i]))
		return 0;
	if (s->sorted_thirds) {
		n.qkv = NAMING_QKV_THIRDS;
		expect(l, &n, i);
		return 0;
	}
	if (!l->metadata.knows_qkv)
		return errmsg_set(
			l->err, -EINVAL,
			"%s: does not tell the order of the rows of %s; give --qkv_order",
			s->path, l->tensor.name);
	if (n.qkv == NAMING_QKV_THIRDS)
		*ranks = l->metadata.tensor_ranks;
	if (*ranks && l->whole.config.n_head % *ranks)
		return errmsg_set(
			l->err, -EINVAL,
			"%s: was saved by %u tensor-parallel ranks, which do not divide %u attention heads",
			s->path, *ranks, l->whole.config.n_head);
	return 0;
}

static int send_tensor(struct load *l, size_t i, const struct fragment *f,
		       float *part)
{
	const struct gpt2_param *p = &l->z->model->params[i];
	struct load_arranged a = { .source = l->source,
				   .tensor = &l->tensor,
				   .host = l->host_upload };
	int rc = find_rows(l, i, &a.ranks);

	if (rc)
		return rc;
	return load_arranged_is(&a)
		       ? load_arranged_send(&a, p, f, l->z->backend,
					    part + f->start, l->err)
		       : send_fragment(l, p, f, part);
}

static int load_tensor(struct load *l, size_t i, const char *state, float *part)
{
	const struct gpt2_param *p = &l->z->model->params[i];
	const struct fragment f = zero_fragment(l->z, i);
	int rc;

	assert(f.start + f.numel <= l->z->local);
	if (!f.numel)
		return 0;
	expect(l, &l->source->naming, i);
	rc = l->source->ops->begin(l->source, l->tensor.name, state, l->err);
	if (rc == -ENOENT)
		return take_missing(l, state, rc);
	if (!rc)
		rc = check_shape(l, p);
	if (!rc && p->number == GPT2_WTE)
		l->got->vocab_rows = find_vocab_rows(l, p);
	if (!rc)
		rc = send_tensor(l, i, &f, part);
	l->source->ops->end(l->source);
	return rc;
}

/* --- all of them ----------------------------------------------------------- */

int load_known(const struct load_source *s, const char *param,
	       struct errmsg *err)
{
	const struct gpt2 *m = s->whole;

	for (size_t i = 0; i < m->nparams; i++) {
		struct naming_tensor t;

		naming_tensor(&t, &s->naming, m, &m->params[i]);
		if (strcmp(t.name, param) == 0)
			return 0;
	}
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
	s->rules = l->o->rules->digest ? l->o->rules : NULL;
	s->naming = l->metadata.naming;
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

/*
 * The slices of Megatron's query_key_value do not make the whole one after the
 * other if they are in thirds, and a single rank's checkpoint does not say which
 * weights are cut in columns.
 */
static int add_preset(struct load *l)
{
	struct load_metadata *const f = &l->metadata;
	struct user_rules *const rules = l->o->rules;

	if (f->naming.family == NAMING_HF || l->o->universal)
		return 0;
	if (rules->preset.name) {
		f->knows_qkv = true;
		f->naming.qkv = names_ends_with(rules->preset.name, "by-head")
					? NAMING_QKV_HEADS
					: NAMING_QKV_THIRDS;
		return 0;
	}
	if (!f->knows_qkv)
		return errmsg_set(
			l->err, -EINVAL,
			"%s: does not tell the order of the rows of query_key_value; give --qkv_order",
			l->got->path);
	return user_rules_preset(rules,
				 f->naming.qkv == NAMING_QKV_THIRDS
					 ? "megatron-qkv-thirds"
					 : "megatron-qkv-by-head",
				 l->err);
}

/* Rank 0 locates the checkpoint, so that all ranks load the same one. */
static int load_find_checkpoint(struct load *l)
{
	struct comm *c = l->z->world;
	int rc = 0;

	if (c->rank == 0) {
		rc = load_find(l->o, l->got->path, l->err);
		if (!rc)
			rc = load_metadata(l->o, &l->whole, l->got->path,
					   &l->metadata, l->err);
	}
	rc = comm_agree(c, rc, l->err);
	if (rc)
		return rc;
	comm_broadcast(c, l->got->path, sizeof(l->got->path), 0);
	comm_broadcast(c, &l->metadata, sizeof(l->metadata), 0);
	return add_preset(l);
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
	l->got->exact_gelu = f->exact_gelu;
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

/* For what is rearranged before it goes to the device. */
static int open_host_upload(struct load *l, unsigned reads)
{
	int rc;

	if (l->source->naming.family == NAMING_HF)
		return 0;
	rc = backend_cpu_new(&l->host, DTYPE_F32, 0, l->err);
	return rc ? rc : upload_new(&l->host_upload, l->host, reads, l->err);
}

static void close_uploads(struct load *l)
{
	if (l->upload) {
		l->got->gds = upload_gds(l->upload, &l->got->gds_failure);
		upload_free(l->upload);
	}
	if (l->host_upload)
		upload_free(l->host_upload);
	if (l->host)
		l->host->ops->destroy(l->host);
}

static int load_all(struct load *l)
{
	const double begun = clock_seconds();
	const unsigned reads = reads_at_once(l->z->world);
	/* Its memory is taken meanwhile. */
	int rc = upload_new(&l->upload, l->z->backend, reads, l->err);

	if (!rc)
		rc = load_open_source(l);
	if (!rc) {
		rc = open_host_upload(l, reads);
		if (!rc)
			rc = load_tensors(l);
		if (!rc)
			rc = upload_finish(l->upload, l->err);
		l->got->bytes = l->source->bytes;
		l->got->direct = l->source->direct;
		load_close_source(l);
	}
	close_uploads(l);
	l->got->seconds = clock_seconds() - begun;
	return comm_agree(l->z->world, rc, l->err);
}

int load_checkpoint(struct zero *z, const struct load_options *o,
		    struct load_result *got, struct errmsg *err)
{
	struct load l = { .z = z, .o = o, .got = got, .err = err };
	int rc;

	*got = (struct load_result){ 0 };
	rc = comm_agree(z->world, gpt2_init(&l.whole, &z->model->config, err),
			err);
	if (rc)
		return rc;
	rc = load_find_checkpoint(&l);
	if (!rc)
		rc = load_all(&l);
	gpt2_done(&l.whole);
	if (rc)
		return rc;
	take_metadata(&l);
	/* Rank 0 has read the beginning of the embedding. */
	comm_broadcast(z->world, &got->vocab_rows, sizeof(got->vocab_rows), 0);
	sum_missing(&l);
	share_gds_failure(&l);
	return zero_publish(z, err);
}
