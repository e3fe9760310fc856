/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt's products, computed element by element, column-major as documented by NVIDIA. */
#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cudaemu.h"
#include "gpu/nvidia/cublaslt_api.h"

struct cudaemu_lt {
	char unused;
};

struct cudaemu_lt_desc {
	cublasOperation_t a, b;
	cublasLtEpilogue_t epilogue;
	void *bias, *aux;
	int64_t aux_ld;
};

struct cudaemu_lt_layout {
	cudaDataType_t type;
	uint64_t rows, cols;
	int64_t ld;
};

struct cudaemu_lt_preference {
	uint32_t alignment[4];
};

#define ALGORITHMS 16

static bool refuses;
static unsigned with_sums;
static unsigned products[ALGORITHMS];
static struct {
	unsigned n, fastest;
	bool last_fails;
} offered = { .n = 1 };

void cudaemu_offer(unsigned n, unsigned fastest, bool last_fails)
{
	assert(n && n <= ALGORITHMS);
	offered.n = n;
	offered.fastest = fastest;
	offered.last_fails = last_fails;
}

unsigned cudaemu_products_by(unsigned algorithm)
{
	return products[algorithm];
}

void cudaemu_refuse_epilogues(bool refuse)
{
	refuses = refuse;
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
	return s == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "failed";
}

size_t cublasLtGetVersion(void)
{
	return 130102;
}

unsigned cudaemu_products_with_sums(void)
{
	return with_sums;
}

static cublasStatus_t created(void *out, size_t size)
{
	void *const p = calloc(1, size);

	memcpy(out, &p, sizeof(p));
	return p ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static cublasStatus_t destroyed(void *p)
{
	free(p);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lt)
{
	return created(lt, sizeof(**lt));
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lt)
{
	return destroyed(lt);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
					cudaDataType_t scale)
{
	(void)compute;
	if (scale != CUDA_R_32F)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	return created(desc, sizeof(**desc));
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
	return destroyed(desc);
}

/* Set an attribute at `to`; the passed size must be correct. */
static cublasStatus_t set(void *to, size_t to_size, const void *value, size_t size)
{
	if (size != to_size)
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(to, value, size);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
					      cublasLtMatmulDescAttributes_t attr,
					      const void *value, size_t size)
{
	switch (attr) {
	case CUBLASLT_MATMUL_DESC_TRANSA:
		return set(&desc->a, sizeof(desc->a), value, size);
	case CUBLASLT_MATMUL_DESC_TRANSB:
		return set(&desc->b, sizeof(desc->b), value, size);
	case CUBLASLT_MATMUL_DESC_EPILOGUE:
		return set(&desc->epilogue, sizeof(desc->epilogue), value, size);
	case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
		return set(&desc->bias, sizeof(desc->bias), value, size);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
		return set(&desc->aux, sizeof(desc->aux), value, size);
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
		return set(&desc->aux_ld, sizeof(desc->aux_ld), value, size);
	}
	return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
					  uint64_t rows, uint64_t cols, int64_t ld)
{
	if (ld < (int64_t)rows || created(layout, sizeof(**layout)))
		return CUBLAS_STATUS_INVALID_VALUE;
	**layout = (struct cudaemu_lt_layout){ type, rows, cols, ld };
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
	return destroyed(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
	const cublasStatus_t s = created(preference, sizeof(**preference));

	for (size_t i = 0; !s && i < 4; i++)
		(*preference)->alignment[i] = 256;
	return s;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
	return destroyed(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
						    cublasLtMatmulPreferenceAttributes_t attr,
						    const void *value, size_t size)
{
	size_t bytes;

	if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
		return set(&bytes, sizeof(bytes), value, size);
	return set(&preference->alignment[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
		   sizeof(preference->alignment[0]), value, size);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t lt, cublasLtMatmulDesc_t desc,
					      cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
					      cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
					      cublasLtMatmulPreference_t preference, int wanted,
					      cublasLtMatmulHeuristicResult_t *results, int *found)
{
	(void)lt;
	(void)a;
	(void)b;
	(void)c;
	(void)d;
	*found = 0;
	if (wanted < 1 || (refuses && desc->epilogue != CUBLASLT_EPILOGUE_DEFAULT))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	/* NVIDIA documents these requirements. */
	if (desc->aux && desc->aux_ld % 8)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	for (; *found < wanted && (unsigned)*found < offered.n; ++*found) {
		cublasLtMatmulHeuristicResult_t *const r = &results[*found];

		*r = (cublasLtMatmulHeuristicResult_t){
			.algo.number = (uint32_t)*found,
			.state = CUBLAS_STATUS_SUCCESS,
		};
		memcpy(r->algo.alignment, preference->alignment, sizeof(preference->alignment));
	}
	return CUBLAS_STATUS_SUCCESS;
}

static float get(const void *p, cudaDataType_t type, uint64_t i)
{
	if (type == CUDA_R_32F)
		return ((const float *)p)[i];
	return type == CUDA_R_16BF ? cudaemu_from_bf16(((const uint16_t *)p)[i])
				   : cudaemu_from_f16(((const uint16_t *)p)[i]);
}

static void put(void *p, cudaDataType_t type, uint64_t i, float x)
{
	if (type == CUDA_R_32F)
		((float *)p)[i] = x;
	else
		((uint16_t *)p)[i] = type == CUDA_R_16BF ? cudaemu_to_bf16(x) : cudaemu_to_f16(x);
}

/* Return the address of element (row, col) of a factor. */
static uint64_t at(const struct cudaemu_lt_layout *l, cublasOperation_t op, uint64_t row,
		   uint64_t col)
{
	const uint64_t ld = (uint64_t)l->ld;

	return op == CUBLAS_OP_T ? row * ld + col : col * ld + row;
}

/* Compute tanh as the hardware does, with a relative error of up to 2^-11. */
static float tanh_of_hardware(float x)
{
	return tanhf(x) * (1 - 0x1p-11f);
}

static float gelu(float x)
{
	return 0.5f * x * (1 + tanh_of_hardware(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
	const float t = tanh_of_hardware(0.7978845608f * (x + 0.044715f * x * x * x));

	return 0.5f * (1 + t) +
	       0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

/* Apply the epilogue to an element. */
static float finish(const struct cudaemu_lt_desc *desc, cudaDataType_t type, float x, uint64_t row,
		    uint64_t col)
{
	const uint64_t in_aux = col * (uint64_t)desc->aux_ld + row;

	switch (desc->epilogue) {
	case CUBLASLT_EPILOGUE_BIAS:
		return x + get(desc->bias, type, row);
	case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
		x += get(desc->bias, type, row);
		put(desc->aux, type, in_aux, x);
		return gelu(x);
	case CUBLASLT_EPILOGUE_DGELU:
		return x * gelu_slope(get(desc->aux, type, in_aux));
	default:
		return x;
	}
}

/* Compute the row sums of op(a). */
static void sum_rows(const struct cudaemu_lt_desc *desc, const void *a,
		     const struct cudaemu_lt_layout *l, uint64_t m, uint64_t k, cudaDataType_t type)
{
	for (uint64_t row = 0; row < m; row++) {
		double sum = 0;

		for (uint64_t i = 0; i < k; i++)
			sum += (double)get(a, l->type, at(l, desc->a, row, i));
		put(desc->bias, type, row, (float)sum);
	}
}

static bool fits(const void *p, uint32_t alignment)
{
	return (uintptr_t)p % alignment == 0;
}

/* The arguments of cublasLtMatmul at the time of the call. */
struct product {
	struct cudaemu_lt_desc desc;
	struct cudaemu_lt_layout a_layout, b_layout, c_layout, d_layout;
	const void *a, *b, *c;
	void *d;
	float by[2];
};

/* Return op(a), of m rows and k columns, column by column. */
static float *unpack_a(const struct product *p, uint64_t m, uint64_t k)
{
	float *const a = malloc((m * k + 1) * sizeof(*a));

	assert(a);
	for (uint64_t i = 0; i < k; i++)
		for (uint64_t row = 0; row < m; row++)
			a[i * m + row] =
				get(p->a, p->a_layout.type, at(&p->a_layout, p->desc.a, row, i));
	return a;
}

/* Compute column `col` of op(a) * op(b); sum each element in the order of i. */
static void multiply(const struct product *p, const float *restrict a, uint64_t m, uint64_t k,
		     uint64_t col, float *restrict sums)
{
	memset(sums, 0, m * sizeof(*sums));
	for (uint64_t i = 0; i < k; i++) {
		const float b = get(p->b, p->b_layout.type, at(&p->b_layout, p->desc.b, i, col));

		for (uint64_t row = 0; row < m; row++)
			sums[row] += a[i * m + row] * b;
	}
}

static void compute(void *arg)
{
	const struct product *const p = arg;
	const struct cudaemu_lt_layout *const to = &p->d_layout;
	const uint64_t m = to->rows, n = to->cols;
	const uint64_t k = p->desc.a == CUBLAS_OP_T ? p->a_layout.rows : p->a_layout.cols;

	float *const a = unpack_a(p, m, k);
	float *const sums = malloc((m + 1) * sizeof(*sums));

	assert(sums);
	cudaemu_traffic.products++;
	for (uint64_t col = 0; col < n; col++) {
		multiply(p, a, m, k, col, sums);
		for (uint64_t row = 0; row < m; row++) {
			float x = sums[row] * p->by[0];

			if (p->by[1] != 0)
				x += p->by[1] * get(p->c, p->c_layout.type,
						    at(&p->c_layout, CUBLAS_OP_N, row, col));
			put(p->d, to->type, at(to, CUBLAS_OP_N, row, col),
			    finish(&p->desc, to->type, x, row, col));
		}
	}
	free(sums);
	free(a);
	if (p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADA) {
		sum_rows(&p->desc, p->a, &p->a_layout, m, k, to->type);
		with_sums++;
	}
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lt, cublasLtMatmulDesc_t desc, const void *alpha,
			      const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
			      cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
			      cublasLtMatrixLayout_t c_layout, void *d,
			      cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
			      void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
	const bool turned = desc->a == CUBLAS_OP_T;
	const uint64_t m = d_layout->rows, n = d_layout->cols;
	const uint64_t k = turned ? a_layout->rows : a_layout->cols;
	const bool b_turned = desc->b == CUBLAS_OP_T;
	struct product p = { .desc = *desc,
			     .a_layout = *a_layout,
			     .b_layout = *b_layout,
			     .c_layout = *c_layout,
			     .d_layout = *d_layout,
			     .a = a,
			     .b = b,
			     .c = c,
			     .d = d };

	(void)lt;
	(void)workspace;
	(void)workspace_bytes;
	if ((turned ? a_layout->cols : a_layout->rows) != m ||
	    (b_turned ? b_layout->cols : b_layout->rows) != k ||
	    (b_turned ? b_layout->rows : b_layout->cols) != n || !fits(a, algo->alignment[0]) ||
	    !fits(b, algo->alignment[1]) || !fits(c, algo->alignment[2]) ||
	    !fits(d, algo->alignment[3]))
		return CUBLAS_STATUS_INVALID_VALUE;
	/* Kernels may access these as vectors. */
	if (!fits(desc->bias, 16) || !fits(desc->aux, 16))
		return CUBLAS_STATUS_EXECUTION_FAILED;
	assert(algo->number < ALGORITHMS);
	if (offered.last_fails && algo->number + 1 == offered.n)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	products[algo->number]++;
	cudaemu_spend(algo->number == offered.fastest ? 0.5 : 1);
	memcpy(&p.by[0], alpha, sizeof(p.by[0]));
	memcpy(&p.by[1], beta, sizeof(p.by[1]));
	cudaemu_queue(stream, compute, &p, sizeof(p));
	return CUBLAS_STATUS_SUCCESS;
}

const struct cublaslt_api *cublaslt_api(const char **why)
{
	static const struct cublaslt_api api = {
		.cublasLtCreate = cublasLtCreate,
		.cublasLtDestroy = cublasLtDestroy,
		.cublasLtGetStatusString = cublasLtGetStatusString,
		.cublasLtGetVersion = cublasLtGetVersion,
		.cublasLtMatmulDescCreate = cublasLtMatmulDescCreate,
		.cublasLtMatmulDescDestroy = cublasLtMatmulDescDestroy,
		.cublasLtMatmulDescSetAttribute = cublasLtMatmulDescSetAttribute,
		.cublasLtMatrixLayoutCreate = cublasLtMatrixLayoutCreate,
		.cublasLtMatrixLayoutDestroy = cublasLtMatrixLayoutDestroy,
		.cublasLtMatmulPreferenceCreate = cublasLtMatmulPreferenceCreate,
		.cublasLtMatmulPreferenceDestroy = cublasLtMatmulPreferenceDestroy,
		.cublasLtMatmulPreferenceSetAttribute = cublasLtMatmulPreferenceSetAttribute,
		.cublasLtMatmulAlgoGetHeuristic = cublasLtMatmulAlgoGetHeuristic,
		.cublasLtMatmul = cublasLtMatmul,
	};

	*why = NULL;
	return &api;
}
