/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_STREAM_H
#define UCTRAIN_CUDA_STREAM_H

#include "gpu/cuda/cuda.h"

/* The streams besides the computation's.  Failures are reported by sync. */
void cuda_queues_init(struct cuda *c);
void cuda_queues_done(struct cuda *c);

/* Implementations of the backend_ops of the same names. */
void *cuda_host_alloc(struct backend *b, size_t bytes);
void cuda_host_free(struct backend *b, void *p);
void cuda_copy(struct backend *b, enum backend_queue q, void *dst,
	       const void *src, size_t bytes);
struct backend_event *cuda_event_new(struct backend *b);
void cuda_event_free(struct backend *b, struct backend_event *e);
void cuda_event_record(struct backend *b, struct backend_event *e,
		       enum backend_queue q);
void cuda_event_wait(struct backend *b, struct backend_event *e);
void cuda_queue_wait(struct backend *b, enum backend_queue q,
		     struct backend_event *e);
void *cuda_native_queue(struct backend *b, enum backend_queue q);

#endif
