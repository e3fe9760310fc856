/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces cuda_attention_cudnn.c in builds without cuDNN. */
#include "gpu/cuda/cuda_attention.h"

bool cuda_attention_cudnn(struct cuda *c, const struct cuda_heads *a)
{
	(void)c;
	(void)a;
	return false;
}

bool cuda_attention_cudnn_grad(struct cuda *c, const struct cuda_heads *a)
{
	(void)c;
	(void)a;
	return false;
}

void cuda_attention_cudnn_done(struct cuda *c)
{
	(void)c;
}
