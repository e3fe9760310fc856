/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuBLASLt, whose library is half a gigabyte: it is loaded when it is first
 * needed, so that a uctrain that knows CUDA starts as fast without, also on
 * machines that have not got the library.  The functions here have the names
 * of those that they pass their arguments on to.
 */
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
#define LIBRARY "libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR)

/* The first call is cublasLtCreate's, which tells if there is no library. */
static void *library;

#define REAL(name) ((__typeof__(&(name)))dlsym(library, #name))

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lt)
{
	if (!library)
		library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	return library ? REAL(cublasLtCreate)(lt)
		       : CUBLAS_STATUS_NOT_INITIALIZED;
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
	return library ? REAL(cublasLtGetStatusString)(s)
		       : LIBRARY " cannot be loaded";
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lt)
{
	return REAL(cublasLtDestroy)(lt);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc,
					cublasComputeType_t compute,
					cudaDataType_t scale)
{
	return REAL(cublasLtMatmulDescCreate)(desc, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
	return REAL(cublasLtMatmulDescDestroy)(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
					      cublasLtMatmulDescAttributes_t attr,
					      const void *value, size_t size)
{
	return REAL(cublasLtMatmulDescSetAttribute)(desc, attr, value, size);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout,
					  cudaDataType type, uint64_t rows,
					  uint64_t cols, int64_t ld)
{
	return REAL(cublasLtMatrixLayoutCreate)(layout, type, rows, cols, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
	return REAL(cublasLtMatrixLayoutDestroy)(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
	return REAL(cublasLtMatmulPreferenceCreate)(pref);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
	return REAL(cublasLtMatmulPreferenceDestroy)(pref);
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
				     cublasLtMatmulPreferenceAttributes_t attr,
				     const void *value, size_t size)
{
	return REAL(cublasLtMatmulPreferenceSetAttribute)(pref, attr, value,
							  size);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
	cublasLtHandle_t lt, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
	cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
	cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t pref, int wanted,
	cublasLtMatmulHeuristicResult_t results[], int *found)
{
	return REAL(cublasLtMatmulAlgoGetHeuristic)(lt, desc, a, b, c, d, pref,
						    wanted, results, found);
}

/* Called for each product: found once. */
cublasStatus_t cublasLtMatmul(cublasLtHandle_t lt, cublasLtMatmulDesc_t desc,
			      const void *alpha, const void *a,
			      cublasLtMatrixLayout_t a_layout, const void *b,
			      cublasLtMatrixLayout_t b_layout, const void *beta,
			      const void *c, cublasLtMatrixLayout_t c_layout,
			      void *d, cublasLtMatrixLayout_t d_layout,
			      const cublasLtMatmulAlgo_t *algo, void *workspace,
			      size_t workspace_bytes, cudaStream_t stream)
{
	static __typeof__(&cublasLtMatmul) real;

	if (!real)
		real = REAL(cublasLtMatmul);
	return real(lt, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout,
		    d, d_layout, algo, workspace, workspace_bytes, stream);
}
