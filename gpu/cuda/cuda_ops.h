/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_OPS_H
#define UCTRAIN_CUDA_OPS_H

#include "gpu/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The backend_ops that cuda_NAME functions outside backend_cuda.c implement. */
/* clang-format off */
#define CUDA_OPS(OP) \
	OP(enter) OP(host_alloc) OP(host_free) OP(copy) \
	OP(event_new) OP(event_free) OP(event_record) OP(event_wait) \
	OP(queue_wait) OP(native_queue) \
	OP(record_begin) OP(record_end) OP(replay) OP(graph_free) \
	OP(embed) OP(embed_grad) OP(norm) OP(norm_grad) \
	OP(linear) OP(linear_grad) OP(attention) OP(attention_grad) \
	OP(dropout) OP(add) OP(transpose) OP(cross_entropy) \
	OP(sum_squares) OP(accumulate) OP(round) \
	OP(cast) OP(narrow) OP(clip) OP(adam)
/* clang-format on */

#define CUDA_OP_DECLARE(op) BACKEND_OP(op) cuda_##op;
CUDA_OPS(CUDA_OP_DECLARE)

/* Create the streams other than the computation's.  sync reports failures. */
void cuda_queues_init(struct cuda *c);
void cuda_queues_done(struct cuda *c);

#ifdef __cplusplus
}
#endif

#endif
