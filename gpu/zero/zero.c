/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's training state and its update.
 *
 * Up to stage 2 the parameters lie end to end in the partition's order, so that a rank's part is
 * one range of the full buffer.  Partitioned state has only that part; other state has the full
 * buffer.  Stage 0 has one part, which every rank holds.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "gpu/backend/clip.h"
#include "gpu/comm/pieces.h"
#include "gpu/zero/optimizer.h"
#include "gpu/zero/zero_impl.h"

#define WINDOW_ELEMENTS ((size_t)4 << 20) /* staged on the host at a time */

int zero_check_memory(const struct zero *z, struct errmsg *err)
{
	const uint64_t lacking = z->memory.lacking;

	return lacking ? errmsg_set(err, -ENOMEM,
				    "%s: out of memory: %" PRIu64 " bytes are in use and %" PRIu64
				    " more are needed; try a higher --zero_stage on more ranks, --recompute or a smaller micro-batch",
				    z->backend->name, z->memory.bytes - lacking, lacking)
		       : 0;
}

static int zero_partition(struct zero *z, struct errmsg *err)
{
	const struct gpt2 *m = z->model;
	uint64_t *numel = malloc(m->nparams * sizeof(*numel));
	int rc = -ENOMEM;

	if (numel) {
		for (size_t i = 0; i < m->nparams; i++)
			numel[i] = m->params[i].numel;
		rc = partition_init(&z->partition, z->stage == 3, numel, NULL, m->nparams,
				    z->stage ? z->comm->size : 1);
	}
	free(numel);
	if (rc)
		return errmsg_set(err, rc, "the model cannot be partitioned for %u ranks",
				  z->comm->size);
	z->part = z->stage ? z->comm->rank : 0;
	z->local = z->partition.size;
	return 0;
}

static int alloc_host(struct zero *z, struct errmsg *err)
{
	struct zero_impl *m = z->impl;

	m->window = WINDOW_ELEMENTS;
	if (m->window > z->partition.size * z->partition.ranks)
		m->window = z->partition.size * z->partition.ranks;
	m->units = calloc(z->model->nunits, sizeof(*m->units));
	m->pieces = calloc(z->comm->size, sizeof(*m->pieces));
	m->host = malloc(m->window * sizeof(*m->host));
	m->arrived = z->backend->ops->event_new(z->backend);
	if (!m->units || !m->pieces || !m->host || !m->arrived)
		return errmsg_nomem(err, NULL);
	return 0;
}

static void alloc_device(struct zero *z)
{
	struct backend_memory *const all = &z->memory;
	struct zero_impl *m = z->impl;
	const uint64_t whole = z->partition.size * z->partition.ranks;

	m->nweights = z->stage < 3 ? whole : z->local;
	z->master = backend_take(all, z->local * sizeof(float));
	z->exp_avg = backend_take(all, z->local * sizeof(float));
	z->exp_avg_sq = backend_take(all, z->local * sizeof(float));
	m->weights = backend_take(all, m->nweights * z->backend->act_size);
	m->gradient = backend_take(all, (z->whole_gradients ? whole : z->local) * sizeof(float));
	m->norm = backend_take(all, sizeof(*m->norm));
	m->factor = backend_take(all, sizeof(*m->factor));
	m->step = backend_take(all, sizeof(*m->step));
	m->norm_read = backend_take_pinned(all, sizeof(*m->norm_read));
	m->step_set = backend_take_pinned(all, sizeof(*m->step_set));
	/* Buffers of units whose weights or gradients are partitioned. */
	if (z->stage == 3)
		unit_buffers_init(z, &m->unit_weights, z->backend->act_size);
	if (!z->whole_gradients)
		unit_buffers_init(z, &m->unit_gradients, sizeof(*m->gradient));
}

static uint64_t largest_unit(const struct gpt2 *model)
{
	uint64_t most = 0;

	for (unsigned i = 0; i < model->nunits; i++)
		if (model->units[i].numel > most)
			most = model->units[i].numel;
	return most;
}

/* Allocate the buffer of gradients that ranks exchange in a 16-bit type. */
static void alloc_narrow(struct zero *z, enum dtype dtype)
{
	struct zero_impl *m = z->impl;

	if (z->comm->size == 1 || dtype == DTYPE_F32)
		return;
	assert(dtype_size(dtype) == 2);
	m->comm_dtype = dtype;
	m->nnarrow = largest_unit(z->model);
	m->narrow = backend_take(&z->memory, m->nnarrow * dtype_size(dtype));
}

int zero_init(struct zero *z, const struct gpt2 *model, struct topology *ranks, struct backend *b,
	      const struct zero_options *o, struct errmsg *err)
{
	int rc;

	assert(o->stage <= 3);
	*z = (struct zero){ .model = model,
			    .comm = &ranks->replicas,
			    .ranks = ranks,
			    .tensor = &ranks->tensor,
			    .world = ranks->world,
			    .backend = b,
			    .memory = { .b = b },
			    .stage = o->stage,
			    .whole_gradients =
				    o->stage < 2 || (o->stage == 2 && o->reduce_at_boundary),
			    .optimizer = o->optimizer,
			    .impl = calloc(1, sizeof(*z->impl)) };
	rc = z->impl ? 0 : errmsg_nomem(err, NULL);
	if (!rc) {
		z->impl->group = &ranks->replicas_device;
		rc = zero_partition(z, err);
	}
	if (!rc)
		rc = alloc_host(z, err);
	if (!rc) {
		alloc_device(z);
		alloc_narrow(z, o->comm_dtype);
		rc = zero_check_memory(z, err);
	}
	rc = comm_agree(z->world, rc, err);
	if (rc)
		zero_done(z);
	return rc;
}

void zero_done(struct zero *z)
{
	struct zero_impl *m = z->impl;

	if (m) {
		zero_release_grad(z);
		if (m->arrived)
			z->backend->ops->event_free(z->backend, m->arrived);
		free(m->units);
		free(m->pieces);
		free(m->host);
		free(m->exact);
	}
	free(m);
	backend_give_back(&z->memory);
	partition_done(&z->partition);
	*z = (struct zero){ 0 };
}

struct fragment zero_fragment(const struct zero *z, size_t i)
{
	assert(i < z->model->nparams);
	return partition_fragment(&z->partition, i, z->part);
}

int zero_init_weights(struct zero *z, uint64_t seed, struct errmsg *err)
{
	struct zero_impl *m = z->impl;

	for (size_t i = 0; i < z->model->nparams; i++) {
		const struct fragment f = zero_fragment(z, i);

		assert(f.start + f.numel <= z->local);
		for (uint64_t at = 0; at < f.numel; at += m->window) {
			const size_t n = pieces_within(f.numel, at, m->window);

			init_weights(z->model, i, seed, f.first + at, n, m->host);
			z->backend->ops->to_device(z->backend, z->master + f.start + at, m->host,
						   n * sizeof(*m->host));
		}
	}
	return zero_publish(z, err);
}

const void *zero_model(const struct zero *z, uint64_t *numel)
{
	*numel = z->impl->nweights;
	return z->impl->weights;
}

void zero_collect(const struct zero *z, const float *state, size_t i, float *out)
{
	size_t *const bytes = z->impl->pieces;
	const struct fragment own = zero_fragment(z, i);

	z->backend->ops->to_host(z->backend, out + own.first, state + own.start,
				 own.numel * sizeof(*out));
	if (!z->stage)
		return;
	for (unsigned r = 0; r < z->comm->size; r++)
		bytes[r] = partition_fragment(&z->partition, i, r).numel * sizeof(*out);
	comm_all_gather(z->comm, out + own.first, bytes, out);
}

/* Wait for the device and report its first error.  A rank whose device failed aborts the job:
 * other devices would wait in collectives that it can no longer join.  Lack of memory does not
 * prevent it from joining. */
static int check_device(struct zero *z, struct errmsg *err)
{
	int rc = z->backend->ops->sync(z->backend, err) ?: topology_check(z->ranks, err);

	if (rc && rc != -ENOMEM && !z->backend->on_host && z->world->size > 1)
		comm_abort(z->world, err);
	return rc;
}

/* Return this rank's part of the weights, for writing. */
static void *own_weights(struct zero *z)
{
	uint8_t *own = z->impl->weights;

	zero_discard_prefetch(z);
	if (z->stage < 3)
		own += z->part * z->local * z->backend->act_size;
	return own;
}

/* Gather the other ranks' parts on ranks that keep all weights. */
static void share_weights(struct zero *z, const void *own)
{
	struct device_group *const g = z->impl->group;
	const size_t bytes = z->local * z->backend->act_size;

	if (z->stage == 1 || z->stage == 2) {
		device_group_all_gather(g, own, device_group_equal(g, bytes), z->impl->weights);
		device_group_wait(g);
	}
}

static int end_sharing(struct zero *z, struct errmsg *err)
{
	return comm_agree(z->world, check_device(z, err), err);
}

int zero_publish(struct zero *z, struct errmsg *err)
{
	void *const own = own_weights(z);

	z->backend->ops->round(z->backend, own, z->master, z->local);
	share_weights(z, own);
	return end_sharing(z, err);
}

void zero_expect_last(struct zero *z)
{
	z->impl->last_pass = z->impl->group->direct;
}

bool zero_shares_embedding(const struct zero *z)
{
	const struct gpt2_part *part = &z->model->part;

	return part->stages > 1 && (part->stage == 0 || part->stage + 1 == part->stages);
}

/* Sum the embedding's gradient over both ends of a pipeline, which both use it: then both make the
 * same update. */
static void sum_ends(struct zero *z)
{
	struct zero_impl *m = z->impl;
	struct device_group *const ends = &z->ranks->ends_device;
	const uint64_t n = z->model->params[GPT2_WTE].numel;

	if (!zero_shares_embedding(z))
		return;
	assert(z->stage < 2);
	if (m->exact) {
		comm_sum_double(&z->ranks->ends, m->exact, n);
		return;
	}
	device_group_sum(ends, m->gradient + z->partition.start[GPT2_WTE], n, DTYPE_F32);
	device_group_wait(ends);
}

/* Reduce the units that were not reduced when they were completed. */
static void sum_rest(struct zero *z)
{
	for (unsigned i = 0; i < z->model->nunits; i++)
		if (z->model->units[i].numel &&
		    (!z->impl->last_pass || (i == GPT2_UNIT_EMBED && zero_shares_embedding(z))))
			zero_sum_unit(z, i);
}

/* Finish the reduction over ranks.  Returns this rank's part of the gradient. */
static float *zero_reduce_units(struct zero *z)
{
	float *const own = zero_own_gradient(z);

	if (z->impl->exact) {
		zero_exact_sum(z, own);
		return own;
	}
	zero_release_grad(z);
	if (z->whole_gradients)
		sum_rest(z);
	device_group_wait(z->impl->group);
	return own;
}

/* Sum the squares of this rank's part.  If several ranks have a parameter, only the first counts
 * it. */
static void sum_squares(struct zero *z, const float *gradient)
{
	struct backend *b = z->backend;
	double *const sum = z->impl->norm;

	b->ops->zero(b, sum, sizeof(*sum));
	if (z->tensor->rank == 0 && z->ranks->pipe.rank == 0) {
		b->ops->sum_squares(b, sum, gradient, z->local);
		return;
	}
	for (size_t i = 0; i < z->model->nparams; i++) {
		const struct fragment f = zero_fragment(z, i);

		if (z->model->params[i].first && f.numel)
			b->ops->sum_squares(b, sum, gradient + f.start, f.numel);
	}
}

/* Queue the sum of squares of the whole gradient, which stays on the device. */
static void global_norm(struct zero *z, const float *gradient)
{
	struct device_group *const groups[] = { z->impl->group, &z->ranks->tensor_device,
						&z->ranks->pipe_device };

	sum_squares(z, gradient);
	/* In stage 0 all ranks of the first group have the whole sum: skip that group. */
	for (size_t i = z->stage ? 0 : 1; i < COUNT(groups); i++) {
		device_group_sum(groups[i], z->impl->norm, 1, DTYPE_F64);
		device_group_wait(groups[i]);
	}
}

void zero_begin_update(struct zero *z, const struct zero_update *u)
{
	const struct optimizer_config *const o = &z->optimizer;

	assert(u->grad_scale > 0);
	*z->impl->step_set = (struct zero_step){
		.rate = { optimizer_rate(o, true, z->step + 1, u->lr),
			  optimizer_rate(o, false, z->step + 1, u->lr) },
		.scale = 1 / (u->grad_scale * z->ranks->data.size),
	};
}

/* Update this rank's part, and its weights, `own`.  Only the device knows whether the gradient is
 * finite, so that the step counts. */
static void update_part(struct zero *z, uint8_t *own, const float *gradient)
{
	const struct backend_rate *const rate = z->impl->step->rate;
	const float *const factor = z->impl->factor;
	const struct backend_adam adam[] = { optimizer_adam(&z->optimizer, true),
					     optimizer_adam(&z->optimizer, false) };
	struct backend *b = z->backend;

	if (z->optimizer.decay != DECAY_MATRICES) {
		b->ops->adam(b, adam, rate, factor, own, z->master, z->exp_avg, z->exp_avg_sq,
			     gradient, z->local);
		return;
	}
	for (size_t i = 0; i < z->model->nparams; i++) {
		const struct fragment f = zero_fragment(z, i);
		const unsigned k = z->model->params[i].ndim > 1 ? 0 : 1;

		if (f.numel)
			b->ops->adam(b, &adam[k], &rate[k], factor, own + f.start * b->act_size,
				     z->master + f.start, z->exp_avg + f.start,
				     z->exp_avg_sq + f.start, gradient + f.start, f.numel);
	}
}

void zero_queue_update(struct zero *z, double clip)
{
	struct zero_impl *m = z->impl;
	struct backend *b = z->backend;
	float *gradient;
	void *own;

	b->ops->copy(b, QUEUE_COMPUTE, m->step, m->step_set, sizeof(*m->step));
	sum_ends(z);
	gradient = zero_reduce_units(z);
	global_norm(z, gradient);
	own = own_weights(z);
	b->ops->clip(b, m->factor, m->norm, &m->step->scale, clip);
	update_part(z, own, gradient);
	b->ops->copy(b, QUEUE_COMPUTE, m->norm_read, m->norm, sizeof(*m->norm));
	share_weights(z, own);
	for (unsigned i = 0; i < z->model->nunits; i++)
		m->units[i].begun = false;
	m->last_pass = false;
}

int zero_end_update(struct zero *z, struct zero_update *u, struct errmsg *err)
{
	const int rc = end_sharing(z, err);

	u->grad_norm = (double)clip_norm(*z->impl->norm_read, z->impl->step_set->scale);
	u->overflow = !isfinite(u->grad_norm);
	if (!rc && !u->overflow)
		z->step++;
	return rc;
}
