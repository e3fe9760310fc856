/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUBLASLT_API_H
#define UCTRAIN_CUBLASLT_API_H

#include <cublasLt.h>

#include "ckpt/base/system.h"

/* The calls of cuBLASLt that we use.  The library is half a gigabyte: it is loaded with the first
 * CUDA backend, so that other runs start without that delay, and also on machines that lack it. */
#define CUBLASLT_CALLS(X)                       \
	X(cublasLtCreate)                       \
	X(cublasLtDestroy)                      \
	X(cublasLtGetStatusString)              \
	X(cublasLtGetVersion)                   \
	X(cublasLtMatmulDescCreate)             \
	X(cublasLtMatmulDescDestroy)            \
	X(cublasLtMatmulDescSetAttribute)       \
	X(cublasLtMatrixLayoutCreate)           \
	X(cublasLtMatrixLayoutDestroy)          \
	X(cublasLtMatmulPreferenceCreate)       \
	X(cublasLtMatmulPreferenceDestroy)      \
	X(cublasLtMatmulPreferenceSetAttribute) \
	X(cublasLtMatmulAlgoGetHeuristic)       \
	X(cublasLtMatmul)

struct cublaslt_api {
	CUBLASLT_CALLS(DYNLIB_MEMBER)
};

/* The table, valid for the rest of the process.  NULL, with the dynamic linker's reason in *why,
 * if the library cannot be loaded. */
const struct cublaslt_api *cublaslt_api(const char **why);

#endif
