/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvidia/cudnn_api.h"

#define LIBRARY "libcudnn.so.9"

const struct cudnn_api *cudnn_api(void)
{
	static struct cudnn_api api;
	__typeof__(cudnnGetVersion) *version;
	const struct dynlib_call calls[] = { { "cudnnGetVersion",
					       (void **)&version },
					     CUDNN_CALLS(DYNLIB_CALL) };
	const char *why;

	if (!dynlib_load(LIBRARY, CUDA_DIRS, calls, sizeof(calls) / sizeof(*calls), &why))
		return NULL;
	api.version = version();
	return &api;
}
