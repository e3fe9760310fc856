/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_BACKEND_H
#define UCTRAIN_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/tensor/tensor.h"

struct backend;
struct backend_event;
struct errmsg;
struct reader;

/*
 * One step of Adam on n elements, with what is the same for all of them:
 *
 *     g = grad * grad_scale (+ l2 * p)
 *     p *= decay
 *     m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g * g
 *     p -= step_size * m / (sqrt(v) / denom + eps)
 */
struct backend_adam {
	/* Doubles: 1 - beta2 in float has lost four of its digits. */
	double beta1, beta2;
	float eps;
	float grad_scale; /* clipping, loss scale */
	float l2;	  /* Adam's weight decay: part of the gradient */
	float decay;	  /* AdamW's: 1 - lr * weight_decay */
	float step_size;  /* lr / (1 - beta1^t) */
	float denom;	  /* sqrt(1 - beta2^t) */
};

/*
 * What computes: the operations of GPT-2 and of its optimizer, on buffers in
 * the memory of a device.  network.c and zero.c know no other way to touch
 * such memory, so that a backend is all that a device needs.
 *
 * Two kinds of buffers: "lp" ones hold weights and activations in the model's
 * type (backend->dtype) and are counted in elements of backend->lp_size bytes
 * (a device without 16-bit arithmetic may keep float32 there, rounded to what
 * the type can hold); float ones hold gradients of weights, master weights
 * and optimizer states.  Matrices are row-major; `rows` is batch times
 * positions.  Gradients of weights are added to what is there, gradients of
 * activations are written, unless said otherwise.
 *
 * Operations are queued in order; `sync` waits for them.  A device error is
 * kept and told by `sync`.
 *
 * Beside that queue are others, for what goes on meanwhile: nothing is in order
 * between two of them but what an event puts into order.  A backend is used by
 * one thread; what `host_alloc` gave may be read and written by any.
 */
enum backend_queue {
	QUEUE_COMPUTE, /* has all operations that name no queue */
	QUEUE_COPY,    /* state from and to files */
	QUEUE_COMM,    /* what devices tell each other */
};
#define BACKEND_QUEUES 3

struct backend_ops {
	void (*destroy)(struct backend *b);
	int (*sync)(struct backend *b, struct errmsg *err);

	/* Memory, zeroed; NULL when there is not enough. */
	void *(*alloc)(struct backend *b, size_t bytes);
	void (*free)(struct backend *b, void *p);
	void (*to_device)(struct backend *b, void *dst, const void *src,
			  size_t bytes); /* src has been read on return */
	void (*to_host)(struct backend *b, void *dst, const void *src,
			size_t bytes); /* has happened on return */
	void (*zero)(struct backend *b, void *p, size_t bytes);

	/* Memory of the host that `copy` reaches without a detour (pinned),
	 * not zeroed; NULL when there is not enough. */
	void *(*host_alloc)(struct backend *b, size_t bytes);
	void (*host_free)(struct backend *b, void *p);
	/* Between the device and memory of host_alloc, or within one of them.
	 * Both sides are left alone until an event after it has happened. */
	void (*copy)(struct backend *b, enum backend_queue q, void *dst,
		     const void *src, size_t bytes);

	/*
	 * A place in a queue, after all that is in it when it is recorded.
	 * One that was never recorded has happened.  An error of the device
	 * lets event_wait return; `sync` tells it.
	 */
	struct backend_event *(*event_new)(struct backend *b); /* NULL: none */
	void (*event_free)(struct backend *b, struct backend_event *e);
	void (*event_record)(struct backend *b, struct backend_event *e,
			     enum backend_queue q);
	void (*event_wait)(struct backend *b, struct backend_event *e);
	/* What comes into `q` from now on waits for it. */
	void (*queue_wait)(struct backend *b, enum backend_queue q,
			   struct backend_event *e);
	/* What the device's own library calls the queue; NULL: it has none. */
	void *(*native_queue)(struct backend *b, enum backend_queue q);

	/* A reader of files straight into the device's memory (reader.h), where
	 * that is not the host's.  -ENOTSUP, without a message: there is
	 * none. */
	int (*reader_new)(struct backend *b, struct reader **out,
			  unsigned width, struct errmsg *err);

	/* out[rows][c] = wte[token] + wpe[position]; rows = batch * seq. */
	void (*embed)(struct backend *b, void *out, const void *wte,
		      const void *wpe, const int32_t *tokens, size_t batch,
		      size_t seq, size_t c);
	void (*embed_grad)(struct backend *b, float *dwte, float *dwpe,
			   const void *dout, const int32_t *tokens,
			   size_t batch, size_t seq, size_t c);

	/* Layer norm; `stats` keeps mean and 1/sigma of each row for the way
	 * back, float[rows][2]. */
	void (*norm)(struct backend *b, void *out, float *stats,
		     const void *in, const void *weight, const void *bias,
		     size_t rows, size_t c, float eps);
	/* Adds to `din`: the residual's gradient is there already. */
	void (*norm_grad)(struct backend *b, void *din, float *dweight,
			  float *dbias, const void *dout, const void *in,
			  const float *stats, const void *weight, size_t rows,
			  size_t c);

	/* out = in * w + bias, w is Conv1D's [ic][oc]; with `residual` (may be
	 * `out`) added, if not NULL; with gelu_new applied if `pre` is not
	 * NULL, which keeps the values before it. */
	void (*linear)(struct backend *b, void *out, void *pre, const void *in,
		       const void *w, const void *bias, const void *residual,
		       size_t rows, size_t ic, size_t oc);
	/* The gradient of all three.  If `pre` is not NULL, `in` is what
	 * gelu_new made of it, and `din` is the gradient of `pre`. */
	void (*linear_grad)(struct backend *b, void *din, float *dw,
			    float *dbias, const void *dout, const void *in,
			    const void *pre, const void *w, size_t rows,
			    size_t ic, size_t oc);

	/* Causal attention of qkv[rows][3 * c], c = heads * width; `stats` is
	 * float[batch][heads][seq], what the way back needs to make the
	 * weights again.  `drop` is the rate; `seed` names the pattern. */
	void (*attention)(struct backend *b, void *out, float *stats,
			  const void *qkv, size_t batch, size_t seq,
			  size_t heads, size_t c, float drop, uint64_t seed);
	void (*attention_grad)(struct backend *b, void *dqkv, const void *dout,
			       const void *out, const float *stats,
			       const void *qkv, size_t batch, size_t seq,
			       size_t heads, size_t c, float drop,
			       uint64_t seed);

	/* In place: elements dropped with probability `drop`, the others
	 * scaled up.  The same seed drops the same ones: its own gradient. */
	void (*dropout)(struct backend *b, void *x, size_t n, float drop,
			uint64_t seed);

	/* dst += src */
	void (*add)(struct backend *b, void *dst, const void *src, size_t n);

	/*
	 * Head and loss at once: logits = in * wte', of each row the cross
	 * entropy against targets[rows] (-1: the row does not count).  Adds
	 * their sum, unscaled, to *loss (float64, on the device).  With `din`,
	 * also the gradients of scale * sum: logits are never there as a
	 * whole.
	 */
	void (*classify)(struct backend *b, double *loss, void *din,
			 float *dwte, const void *in, const void *wte,
			 const int32_t *targets, size_t rows, size_t c,
			 size_t vocab, float scale);

	/* --- what ZeRO needs, on float buffers --------------------------- */

	/* *sum += the sum of squares; NaN or infinite if an element is. */
	void (*sum_squares)(struct backend *b, double *sum, const float *x,
			    size_t n);
	void (*scale)(struct backend *b, float *x, float factor, size_t n);
	void (*accumulate)(struct backend *b, float *dst, const float *src,
			   size_t n);
	/* Weights in the model's type, from masters, and back. */
	void (*round)(struct backend *b, void *dst, const float *src,
		      size_t n);
	void (*widen)(struct backend *b, float *dst, const void *src,
		      size_t n);
	void (*adam)(struct backend *b, const struct backend_adam *a, float *p,
		     float *exp_avg, float *exp_avg_sq, const float *grad,
		     size_t n);
};

struct backend {
	const struct backend_ops *ops;
	const char *name;
	enum dtype dtype; /* of the model */
	size_t lp_size;	  /* bytes of an element of an lp buffer */
	bool on_host;	  /* its memory is the host's: any thread may use it */
	unsigned devices; /* of its kind in this machine; 0: it is the machine */
};

/* `threads` 0: as many as OpenMP says.  -ENOTSUP for types that the backend has
 * not. */
int backend_cpu_new(struct backend **out, enum dtype dtype, unsigned threads,
		    struct errmsg *err);

struct backend_cuda_options {
	unsigned local_rank; /* of this machine: ranks take GPUs in turns */
	bool tf32; /* products of float32 may round factors to 11 bits */
	size_t logits_bytes; /* the most that are there at once; 0: 1 GiB */
	bool no_gds;         /* files are read through the host's memory */
	bool no_cudnn;       /* attention is by our kernels */
	bool deterministic;  /* the same bits from run to run */
};

/* -ENOTSUP where CUDA was not built in, -ENODEV where there is no GPU. */
int backend_cuda_new(struct backend **out, enum dtype dtype,
		     const struct backend_cuda_options *o, struct errmsg *err);

#endif
