/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_STREAM_H
#define UCTRAIN_CUDA_STREAM_H

#include "gpu/cuda/cuda.h"

/* The streams besides the computation's.  Failures are reported by sync. */
void cuda_queues_init(struct cuda *c);
void cuda_queues_done(struct cuda *c);

/* Implementations of the backend_ops of the same names. */
BACKEND_OP(host_alloc) cuda_host_alloc;
BACKEND_OP(host_free) cuda_host_free;
BACKEND_OP(copy) cuda_copy;
BACKEND_OP(event_new) cuda_event_new;
BACKEND_OP(event_free) cuda_event_free;
BACKEND_OP(event_record) cuda_event_record;
BACKEND_OP(event_wait) cuda_event_wait;
BACKEND_OP(queue_wait) cuda_queue_wait;
BACKEND_OP(native_queue) cuda_native_queue;

#endif
