/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_BACKEND_H
#define UCTRAIN_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/tensor.h"

struct backend;
struct backend_event;
struct backend_graph;
struct errmsg;

/*
 * The constants of one Adam step on any number of elements:
 *
 *     g = grad * factor (+ l2 * p)
 *     p *= decay
 *     m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g * g
 *     p -= step_size * m / (sqrt(v) / denom + eps)
 *
 * The constants in backend_rate change from step to step.
 */
struct backend_adam {
	/* In float, 1 - beta2 would lose four digits. */
	double beta1, beta2;
	float eps;
	float l2; /* Adam's weight decay, added to the gradient */
};
struct backend_rate {
	float decay;     /* AdamW's decay: 1 - lr * weight_decay */
	float step_size; /* lr / (1 - beta1^t) */
	float denom;     /* sqrt(1 - beta2^t) */
};

/* Drop elements with probability `p`.  *seed + skip selects them; a NULL seed counts as 0. */
struct backend_dropout {
	float p;
	const uint64_t *seed; /* on the device */
	uint64_t skip;
};

/*
 * A backend: GPT-2's and the optimizer's operations, on buffers in a device's memory. network.c
 * and zero.c access device memory only through it.
 *
 * There are two kinds of buffers. act_t buffers hold weights and activations in the model's type
 * (backend->dtype), in elements of backend->act_size bytes.  A device without 16-bit arithmetic
 * may store float32, rounded to values of the model's type. float buffers hold gradients of
 * weights, master weights and optimizer states.  Matrices are row-major; `rows` is batch times
 * positions. Unless noted otherwise, gradients of weights are accumulated, or stored if they are
 * `fresh`, and gradients of activations are overwritten.  Values that change from step to step are
 * in the device's memory and are read when the operation runs, so that a recorded step can be
 * replayed.
 *
 * Operations are queued in order on QUEUE_COMPUTE; `sync` waits for them and reports the first
 * device error.  Other queues run concurrently: only events order operations of different queues.
 *
 * A backend is used by one thread at a time.  Memory from `host_alloc` may be used by any thread.
 */
enum backend_queue {
	QUEUE_COMPUTE, /* all operations without a queue argument */
	QUEUE_COPY,    /* state from and to files */
	QUEUE_COMM,    /* collectives between devices */
};
#define BACKEND_QUEUES 3

/* Ranks that compute the same rows; each has a range of the tokens. */
struct backend_group {
	unsigned rank, size;
	void *ctx;
	/* all[rank][n] = every rank's `mine`, on the device. */
	void (*gather)(const struct backend_group *g, const float *mine, size_t n, float *all);
	/* Report that `b` failed on this rank before a `gather` for which other ranks wait, and end
	 * all ranks. */
	void (*fail)(const struct backend_group *g, struct backend *b);
};

/* Values of a token or target: none, or one that belongs to another rank. */
#define TOKEN_NONE (-1)
#define TOKEN_ELSEWHERE (-2)

struct backend_ops {
	void (*destroy)(struct backend *b);
	int (*sync)(struct backend *b, struct errmsg *err);
	/* Prepare a thread that uses the backend in turn with the one that created it.  NULL: no
	 * preparation is needed. */
	void (*enter)(struct backend *b);

	/* Device memory, zeroed.  NULL if there is not enough. */
	void *(*alloc)(struct backend *b, size_t bytes);
	void (*free)(struct backend *b, void *p);
	void (*to_device)(struct backend *b, void *dst, const void *src,
			  size_t bytes); /* src may be reused on return */
	void (*to_host)(struct backend *b, void *dst, const void *src,
			size_t bytes); /* complete on return */
	void (*zero)(struct backend *b, void *p, size_t bytes);

	/* Host memory that `copy` accesses directly (pinned), not zeroed.  NULL if there is not
	 * enough. */
	void *(*host_alloc)(struct backend *b, size_t bytes);
	void (*host_free)(struct backend *b, void *p);
	/* Copy between device memory and memory of host_alloc, or within one of them.  Neither
	 * buffer may be accessed before a later event has completed. */
	void (*copy)(struct backend *b, enum backend_queue q, void *dst, const void *src,
		     size_t bytes);
	/* Convert n elements from or to a 16-bit type, rounded to nearest even; with `add`, add
	 * them to `dst`.  Both buffers are in device memory and do not overlap. */
	void (*cast)(struct backend *b, enum backend_queue q, float *dst, const void *src,
		     enum dtype from, size_t n, bool add);
	void (*narrow)(struct backend *b, enum backend_queue q, void *dst, enum dtype to,
		       const float *src, size_t n);

	/*
	 * An event marks a position in a queue: it completes with all operations queued before it
	 * was recorded.  An event that was never recorded is complete.  After a device error
	 * event_wait returns; `sync` reports the error.  event_new returns NULL on failure.
	 */
	struct backend_event *(*event_new)(struct backend *b);
	void (*event_free)(struct backend *b, struct backend_event *e);
	void (*event_record)(struct backend *b, struct backend_event *e, enum backend_queue q);
	void (*event_wait)(struct backend *b, struct backend_event *e);
	/* Operations queued on `q` from now on wait for the event. */
	void (*queue_wait)(struct backend *b, enum backend_queue q, struct backend_event *e);
	/* The device library's object for the queue, or NULL if there is none. */
	void *(*native_queue)(struct backend *b, enum backend_queue q);

	/*
	 * Start recording operations instead of running them.  Until record_end the caller must not
	 * wait, allocate or free, and must copy by `copy` only.  Other queues may start work only
	 * after an event of QUEUE_COMPUTE, which must wait for that work.  Every operation must
	 * have run once before, so that its kernels are loaded and chosen.  NULL: the device cannot
	 * record.
	 */
	int (*record_begin)(struct backend *b, struct errmsg *err);
	/* Stop recording.  Returns the first failure since record_begin, or 0. */
	int (*record_end)(struct backend *b, struct backend_graph **out, struct errmsg *err);
	/* Queue all recorded operations. */
	void (*replay)(struct backend *b, const struct backend_graph *g);
	/* `g` may be NULL. */
	void (*graph_free)(struct backend *b, struct backend_graph *g);

	/* The peak of allocated device memory, in bytes, since the last call with `restart`.  NULL
	 * where the memory is the host's. */
	uint64_t (*memory_peak)(struct backend *b, bool restart);
	/* Bytes that can still be allocated.  Only for devices with memory of their own. */
	uint64_t (*memory_left)(struct backend *b);
	/* Name the operations queued from now until range_end, for profilers.  Ranges may be
	 * nested.  NULL: the device has no profiler. */
	void (*range_begin)(struct backend *b, const char *name);
	void (*range_end)(struct backend *b);

	/* out[rows][c] = wte[token] + wpe[position]; rows = batch * seq.  A TOKEN_ELSEWHERE token,
	 * or a NULL `wpe`, counts as zeros. */
	void (*embed)(struct backend *b, void *out, const void *wte, const void *wpe,
		      const int32_t *tokens, size_t batch, size_t seq, size_t c);
	void (*embed_grad)(struct backend *b, float *dwte, float *dwpe, const void *dout,
			   const int32_t *tokens, size_t batch, size_t seq, size_t c);

	/* Layer norm. stats[rows][2] keeps each row's mean and 1/sigma for the backward pass. */
	void (*norm)(struct backend *b, void *out, float *stats, const void *in, const void *weight,
		     const void *bias, size_t rows, size_t c, float eps);
	/* Accumulates into `din`, which holds the residual's gradient.  If `dold` and `dnew` are
	 * not NULL, add the sums of the rows of `din` before and after the operation to them: the
	 * gradients of the biases that were added to the residual after and before the norm. */
	void (*norm_grad)(struct backend *b, void *din, float *dweight, float *dbias, float *dold,
			  float *dnew, const void *dout, const void *in, const float *stats,
			  const void *weight, size_t rows, size_t c, bool fresh);

	/* out = in * w + bias, where w is Conv1D's [ic][oc].  Adds `residual`, which may be
	 * `out`, if not NULL. If `pre` is not NULL, stores the result there and applies
	 * gelu_new. */
	void (*linear)(struct backend *b, void *out, void *pre, const void *in, const void *w,
		       const void *bias, const void *residual, size_t rows, size_t ic, size_t oc);
	/* Gradients of `linear`.  Any of the three outputs may be NULL; `dbias` must be NULL if
	 * `dw` is.  If `pre` is not NULL, `in` is its gelu_new, and `din` is the gradient of
	 * `pre`. */
	void (*linear_grad)(struct backend *b, void *din, float *dw, float *dbias, const void *dout,
			    const void *in, const void *pre, const void *w, size_t rows, size_t ic,
			    size_t oc, bool fresh);

	/* Causal attention of qkv[rows][3 * c], c = heads * width. stats[batch][heads][seq] is
	 * kept for the backward pass, which recomputes the weights. */
	void (*attention)(struct backend *b, void *out, float *stats, const void *qkv, size_t batch,
			  size_t seq, size_t heads, size_t c, struct backend_dropout drop);
	void (*attention_grad)(struct backend *b, void *dqkv, const void *dout, const void *out,
			       const float *stats, const void *qkv, size_t batch, size_t seq,
			       size_t heads, size_t c, struct backend_dropout drop);

	/* Dropout in place: zero some elements and scale the others up.  Applied to the gradient
	 * with the same seed, it is its own backward pass.  `x` starts at element `first` of the
	 * array that the seed belongs to. */
	void (*dropout)(struct backend *b, void *x, size_t n, size_t first,
			struct backend_dropout drop);

	/* dst += src */
	void (*add)(struct backend *b, void *dst, const void *src, size_t n);

	/* out[j][i][n] = in[i][j][n], act_t, for i < rows and j < columns. */
	void (*transpose)(struct backend *b, void *out, const void *in, size_t rows, size_t columns,
			  size_t n);

	/*
	 * Fused head and loss: logits = in * wte', and each row's cross entropy against
	 * targets[rows]; TOKEN_NONE excludes the row.  Adds the unscaled sum to *loss (float64,
	 * on the device).  With `din`, computes the gradients of *scale * sum.  The whole matrix
	 * of logits is never in memory.  With `group`, `vocab` is the number of this rank's tokens,
	 * targets are relative to its first token or TOKEN_ELSEWHERE, and `din` is this rank's
	 * summand; ranks exchange only three floats per row.
	 */
	void (*cross_entropy)(struct backend *b, double *loss, void *din, float *dwte,
			      const void *in, const void *wte, const int32_t *targets, size_t rows,
			      size_t c, size_t vocab, const float *scale, bool fresh,
			      const struct backend_group *group);

	/* Operations for ZeRO, on float buffers: */

	/* *sum += the sum of squares; NaN or infinite if an element is. */
	void (*sum_squares)(struct backend *b, double *sum, const float *x, size_t n);
	void (*accumulate)(struct backend *b, float *dst, const float *src, size_t n);
	/* Round masters to weights in the model's type.  If that is float, `dst` may be `src`. */
	void (*round)(struct backend *b, void *dst, const float *src, size_t n);
	/* *factor = the factor for gradients whose sum of squares is *sum: clip_factor of
	 * clip.h. */
	void (*clip)(struct backend *b, float *factor, const double *sum, const double *scale,
		     double most);
	/* Also rounds the new p to `weights`, act_t.  `rate` and `factor` are on the device.
	 * Nothing changes if *factor is 0. */
	void (*adam)(struct backend *b, const struct backend_adam *a,
		     const struct backend_rate *rate, const float *factor, void *weights, float *p,
		     float *exp_avg, float *exp_avg_sq, const float *grad, size_t n);
};

/* Declares a function with the prototype of an operation: `BACKEND_OP(norm) cpu_norm;`. */
#define BACKEND_OP(op) __typeof__(*((struct backend_ops *)0)->op)

#define BACKEND_DEVICE_LEN 32

struct backend {
	const struct backend_ops *ops;
	const char *name;
	enum dtype dtype; /* of the model */
	size_t act_size;  /* bytes of an element of an act_t buffer */
	/* Identifies the device on its machine, such as a GPU's PCI bus id; "" if the device is the
	 * machine itself. */
	char device[BACKEND_DEVICE_LEN];
	char library[256]; /* the GEMM library: name, version and file; or "" */
	double peak_flops; /* of GEMMs in `dtype`, per second; 0: unknown */
	bool on_host;      /* its memory is the host's: any thread may use it */
	/* Bytes that cross_entropy may use for logits; equal on all ranks of a group.  The order of
	 * sums, and so the last digits of gradients, depends on it. */
	size_t logits_bytes;
	bool recording; /* between record_begin and record_end */
};

/* Create a CPU backend.  `threads` 0: OpenMP's default.  -ENOTSUP for unsupported types. */
int backend_cpu_new(struct backend **out, enum dtype dtype, unsigned threads, struct errmsg *err);

#endif
