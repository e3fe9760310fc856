/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_GRAPH_H
#define UCTRAIN_CUDA_GRAPH_H

#include "gpu/cuda/cuda.h"

/* Implementations of the backend_ops of the same names. */
BACKEND_OP(record_begin) cuda_record_begin;
BACKEND_OP(record_end) cuda_record_end;
BACKEND_OP(replay) cuda_replay;
BACKEND_OP(graph_free) cuda_graph_free;

#endif
