/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_OPS_H
#define UCTRAIN_CUDA_OPS_H

#include "gpu/backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Implementations of the backend_ops of the same names. */
BACKEND_OP(embed) cuda_embed;
BACKEND_OP(embed_grad) cuda_embed_grad;
BACKEND_OP(norm) cuda_norm;
BACKEND_OP(norm_grad) cuda_norm_grad;
BACKEND_OP(linear) cuda_linear;
BACKEND_OP(linear_grad) cuda_linear_grad;
BACKEND_OP(attention) cuda_attention;
BACKEND_OP(attention_grad) cuda_attention_grad;
BACKEND_OP(dropout) cuda_dropout;
BACKEND_OP(add) cuda_add;
BACKEND_OP(transpose) cuda_transpose;
BACKEND_OP(cross_entropy) cuda_cross_entropy;
BACKEND_OP(sum_squares) cuda_sum_squares;
BACKEND_OP(accumulate) cuda_accumulate;
BACKEND_OP(round) cuda_round;
BACKEND_OP(widen) cuda_widen;
BACKEND_OP(cast) cuda_cast;
BACKEND_OP(narrow) cuda_narrow;
BACKEND_OP(clip) cuda_clip;
BACKEND_OP(adam) cuda_adam;

#ifdef __cplusplus
}
#endif

#endif
