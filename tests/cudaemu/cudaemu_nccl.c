/* SPDX-License-Identifier: Apache-2.0 */
/* An NCCL that the machine has would look for real GPUs; tests/cudaemu/ncclemu.c is one
 * that does not. */
#include <stddef.h>

#include "gpu/nvidia/nccl_api.h"

const struct nccl_api *nccl_api(const char **why)
{
	*why = "the GPUs are emulated";
	return NULL;
}
