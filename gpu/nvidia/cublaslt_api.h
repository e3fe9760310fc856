/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUBLASLT_API_H
#define UCTRAIN_CUBLASLT_API_H

#include <cublasLt.h>

/* The calls of cuBLASLt that we use.  The library is half a gigabyte: it is
 * loaded for the first CUDA backend, so that other runs start as fast as without
 * it, also on machines that lack it. */
struct cublaslt_api {
	__typeof__(cublasLtCreate) *create;
	__typeof__(cublasLtDestroy) *destroy;
	__typeof__(cublasLtGetStatusString) *status_string;
	__typeof__(cublasLtMatmulDescCreate) *desc_create;
	__typeof__(cublasLtMatmulDescDestroy) *desc_destroy;
	__typeof__(cublasLtMatmulDescSetAttribute) *desc_set;
	__typeof__(cublasLtMatrixLayoutCreate) *layout_create;
	__typeof__(cublasLtMatrixLayoutDestroy) *layout_destroy;
	__typeof__(cublasLtMatmulPreferenceCreate) *preference_create;
	__typeof__(cublasLtMatmulPreferenceDestroy) *preference_destroy;
	__typeof__(cublasLtMatmulPreferenceSetAttribute) *preference_set;
	__typeof__(cublasLtMatmulAlgoGetHeuristic) *heuristic;
	__typeof__(cublasLtMatmul) *matmul;
};

/* The table, valid for the rest of the process.  NULL, with the dynamic linker's
 * reason in *why, if the library cannot be loaded. */
const struct cublaslt_api *cublaslt_api(const char **why);

#endif
