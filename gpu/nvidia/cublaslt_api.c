/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvidia/cublaslt_api.h"

#include "gpu/nvidia/dynlib.h"

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
#define LIBRARY "libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR)

const struct cublaslt_api *cublaslt_api(const char **why)
{
	static struct cublaslt_api api;
	const struct dynlib_call calls[] = {
		{ "cublasLtCreate", (void **)&api.create },
		{ "cublasLtDestroy", (void **)&api.destroy },
		{ "cublasLtGetStatusString", (void **)&api.status_string },
		{ "cublasLtMatmulDescCreate", (void **)&api.desc_create },
		{ "cublasLtMatmulDescDestroy", (void **)&api.desc_destroy },
		{ "cublasLtMatmulDescSetAttribute", (void **)&api.desc_set },
		{ "cublasLtMatrixLayoutCreate", (void **)&api.layout_create },
		{ "cublasLtMatrixLayoutDestroy", (void **)&api.layout_destroy },
		{ "cublasLtMatmulPreferenceCreate",
		  (void **)&api.preference_create },
		{ "cublasLtMatmulPreferenceDestroy",
		  (void **)&api.preference_destroy },
		{ "cublasLtMatmulPreferenceSetAttribute",
		  (void **)&api.preference_set },
		{ "cublasLtMatmulAlgoGetHeuristic", (void **)&api.heuristic },
		{ "cublasLtMatmul", (void **)&api.matmul },
	};

	return dynlib_load(LIBRARY, calls, sizeof(calls) / sizeof(*calls), why)
		       ? &api
		       : NULL;
}
