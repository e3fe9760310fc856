/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvidia/cublaslt_api.h"

#define VERSION_TEXT(version) DYNLIB_TEXT(version)
#define LIBRARY "libcublasLt.so." VERSION_TEXT(CUBLAS_VER_MAJOR)

const struct cublaslt_api *cublaslt_api(const char **why)
{
	static struct cublaslt_api api;
	const struct dynlib_call calls[] = { CUBLASLT_CALLS(DYNLIB_CALL) };

	return dynlib_load(LIBRARY, CUDA_DIRS, calls, sizeof(calls) / sizeof(*calls), why) ? &api
											   : NULL;
}
