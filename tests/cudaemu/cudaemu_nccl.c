/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces nccl_api.c: an installed NCCL would look for real GPUs. ncclemu.c
 * emulates one. */
#include <stddef.h>

#include "gpu/nvidia/nccl_api.h"

const struct nccl_api *nccl_api(const char **why)
{
	*why = "the GPUs are emulated";
	return NULL;
}
