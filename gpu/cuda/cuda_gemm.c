/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GEMMs with epilogues by cuBLASLt.  The fastest of the algorithms that it suggests for a problem
 * is measured once and kept, so that equal problems have bit-identical results.
 *
 * cuBLASLt is column-major: our matrices are its transposes, and (a * b)' = b'
 * * a'.
 */
#include "gpu/cuda/cuda_gemm.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "gpu/nvidia/cublaslt_api.h"

/* NVIDIA's recommendation for Hopper; older devices need less. */
#define WORKSPACE_BYTES ((size_t)32 << 20)

/* Alignment beyond this does not influence the selection. */
#define ALIGNMENT_MAX 256

/* Required alignment of the buffers of an epilogue. cuBLASLt does not document it and accepts
 * less, but its kernels may fault then (users of its bias report this below 8 and below 16),
 * which invalidates the CUDA context. */
#define EPILOGUE_ALIGNMENT 16

/* How many of cuBLASLt's suggestions are measured, and how often. */
#define CANDIDATES 16
#define REPEATS 4

#define KEY_LEN 16

struct gemm_plan {
	uint64_t key[KEY_LEN]; /* the problem, as far as it determines the algorithm */
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, out;
	cublasLtMatmulAlgo_t algo;
	bool can;
};

struct gemm_cache {
	const struct cublaslt_api *api;
	cublasLtHandle_t lt;
	void *workspace;
	struct gemm_plan *plans;
	size_t n, room;
	cudaEvent_t begun, ended;
};

/* Like cuda_ok and CUDA_CALL. */
static bool lt_ok(struct cuda *c, cublasStatus_t s, const char *call)
{
	if (s == CUBLAS_STATUS_SUCCESS)
		return true;
	cuda_fail(c, s == CUBLAS_STATUS_ALLOC_FAILED ? -ENOMEM : -EIO, call,
		  c->gemm_cache->api->cublasLtGetStatusString(s));
	return false;
}
#define LT_CALL(c, function, ...) lt_ok(c, (c)->gemm_cache->api->function(__VA_ARGS__), #function)

/* Several versions may be installed, with different speed: report the one in use. */
static void name_library(struct cuda *c, const struct cublaslt_api *api)
{
	const unsigned version = (unsigned)api->cublasLtGetVersion();
	Dl_info of = { 0 };

	dladdr((void *)api->cublasLtGetVersion, &of);
	snprintf(c->base.library, sizeof(c->base.library), "cuBLASLt %u.%u.%u of %s",
		 version / 10000, version / 100 % 100, version % 100,
		 of.dli_fname ? of.dli_fname : "unknown place");
}

int cuda_gemm_init(struct cuda *c)
{
	struct gemm_cache *const p = calloc(1, sizeof(*p));
	const char *why;

	if (!p)
		return -ENOMEM;
	c->gemm_cache = p;
	p->api = cublaslt_api(&why);
	if (!p->api) {
		cuda_fail(c, -ENOENT, "cuBLASLt", why);
		return 0; /* reported by sync */
	}
	name_library(c, p->api);
	if (!LT_CALL(c, cublasLtCreate, &p->lt))
		return 0; /* reported by sync */
	cuda_ok(c, cudaMallocAsync(&p->workspace, WORKSPACE_BYTES, c->stream),
		"workspace of cuBLASLt: cudaMallocAsync");
	CUDA_CALL(c, cudaEventCreateWithFlags, &p->begun, cudaEventDefault);
	CUDA_CALL(c, cudaEventCreateWithFlags, &p->ended, cudaEventDefault);
	return 0;
}

void cuda_gemm_done(struct cuda *c)
{
	struct gemm_cache *const p = c->gemm_cache;

	if (!p)
		return;
	for (size_t i = 0; i < p->n; i++) {
		p->api->cublasLtMatmulDescDestroy(p->plans[i].desc);
		p->api->cublasLtMatrixLayoutDestroy(p->plans[i].a);
		p->api->cublasLtMatrixLayoutDestroy(p->plans[i].b);
		p->api->cublasLtMatrixLayoutDestroy(p->plans[i].out);
	}
	if (p->begun)
		cudaEventDestroy(p->begun);
	if (p->ended)
		cudaEventDestroy(p->ended);
	if (p->lt)
		p->api->cublasLtDestroy(p->lt);
	if (p->workspace)
		cudaFreeAsync(p->workspace, c->stream);
	free(p->plans);
	free(p);
}

static uint32_t alignment(const void *p)
{
	const uintptr_t at = (uintptr_t)p;
	uint32_t n = ALIGNMENT_MAX;

	while (at % n)
		n /= 2;
	return n;
}

static cudaDataType_t type_of(const struct cuda *c, bool wide)
{
	if (wide || c->base.dtype == DTYPE_F32)
		return CUDA_R_32F;
	return c->base.dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* Set an attribute of a product. */
#define SET(c, desc, what, value)                                                               \
	LT_CALL(c, cublasLtMatmulDescSetAttribute, desc, CUBLASLT_MATMUL_DESC_##what, &(value), \
		sizeof(value))

/* Pointers of the epilogue differ between calls with the same plan. */
static bool set_pointers(struct cuda *c, cublasLtMatmulDesc_t d, const struct cuda_gemm *p)
{
	return (!p->vector || SET(c, d, BIAS_POINTER, p->vector)) &&
	       (!p->aux || SET(c, d, EPILOGUE_AUX_POINTER, p->aux));
}

static bool cuda_gemm_describe(struct cuda *c, struct gemm_plan *w, const struct cuda_gemm *p)
{
	static const cublasLtEpilogue_t epilogues[] = {
		[CUDA_EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
		[CUDA_EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
		[CUDA_EPILOGUE_BIAS_GELU] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
		[CUDA_EPILOGUE_GELU_GRAD] = CUBLASLT_EPILOGUE_DGELU,
		/* operand A of cuBLASLt is our b */
		[CUDA_EPILOGUE_SUMS] = CUBLASLT_EPILOGUE_BGRADA,
	};
	const cublasComputeType_t compute =
		c->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
	const cublasOperation_t a = p->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
	const cublasOperation_t b = p->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
	const int64_t pitch = (int64_t)p->out_pitch;

	return LT_CALL(c, cublasLtMatmulDescCreate, &w->desc, compute, CUDA_R_32F) &&
	       SET(c, w->desc, TRANSA, b) && SET(c, w->desc, TRANSB, a) &&
	       SET(c, w->desc, EPILOGUE, epilogues[p->epilogue]) &&
	       (!p->aux || SET(c, w->desc, EPILOGUE_AUX_LD, pitch)) && set_pointers(c, w->desc, p);
}

/* Describe one of our matrices. */
static bool layout(struct cuda *c, cublasLtMatrixLayout_t *out, bool wide, size_t rows,
		   size_t columns, size_t pitch)
{
	return LT_CALL(c, cublasLtMatrixLayoutCreate, out, type_of(c, wide), columns, rows,
		       (int64_t)pitch);
}

static bool cuda_gemm_lay_out(struct cuda *c, struct gemm_plan *w, const struct cuda_gemm *p)
{
	return layout(c, &w->a, false, p->a.transposed ? p->k : p->m, p->a.transposed ? p->m : p->k,
		      p->a.pitch) &&
	       layout(c, &w->b, false, p->b.transposed ? p->n : p->k, p->b.transposed ? p->k : p->n,
		      p->b.pitch) &&
	       layout(c, &w->out, p->wide, p->m, p->n, p->out_pitch);
}

/* Set an attribute of a preference. */
#define LIMIT(c, preference, what, value)                            \
	LT_CALL(c, cublasLtMatmulPreferenceSetAttribute, preference, \
		CUBLASLT_MATMUL_PREF_##what##_BYTES, &(value), sizeof(value))

static bool set_limits(struct cuda *c, cublasLtMatmulPreference_t preference,
		       const struct cuda_gemm *p)
{
	const size_t workspace = WORKSPACE_BYTES;
	const uint32_t a = alignment(p->a.p), b = alignment(p->b.p);
	const uint32_t add = alignment(p->add ? p->add : p->out);
	const uint32_t out = alignment(p->out);

	/* operand A of cuBLASLt is our b */
	return LIMIT(c, preference, MAX_WORKSPACE, workspace) &&
	       LIMIT(c, preference, MIN_ALIGNMENT_A, b) &&
	       LIMIT(c, preference, MIN_ALIGNMENT_B, a) &&
	       LIMIT(c, preference, MIN_ALIGNMENT_C, add) &&
	       LIMIT(c, preference, MIN_ALIGNMENT_D, out);
}

static cublasStatus_t multiply(struct cuda *c, const struct gemm_plan *w, const struct cuda_gemm *p,
			       void *out)
{
	const float alpha = 1, beta = p->add ? 1 : 0;

	return c->gemm_cache->api->cublasLtMatmul(
		c->gemm_cache->lt, w->desc, &alpha, p->b.p, w->b, p->a.p, w->a, &beta,
		p->add ? p->add : out, w->out, out, w->out, &w->algo, c->gemm_cache->workspace,
		WORKSPACE_BYTES, c->stream);
}

/* Measure the plan's algorithm.  Results go to `out`, since `add` may be the real destination; the
 * outputs of an epilogue are written again later.  Returns infinity if the algorithm cannot be used
 * after all. */
static float time_of(struct cuda *c, const struct gemm_plan *w, const struct cuda_gemm *p,
		     void *out)
{
	struct gemm_cache *const all = c->gemm_cache;
	float ms = INFINITY;
	bool ran = multiply(c, w, p, out) == CUBLAS_STATUS_SUCCESS;

	CUDA_CALL(c, cudaEventRecord, all->begun, c->stream);
	for (int i = 0; ran && i < REPEATS; i++)
		ran = multiply(c, w, p, out) == CUBLAS_STATUS_SUCCESS;
	CUDA_CALL(c, cudaEventRecord, all->ended, c->stream);
	if (!CUDA_CALL(c, cudaEventSynchronize, all->ended) || !ran ||
	    !CUDA_CALL(c, cudaEventElapsedTime, &ms, all->begun, all->ended))
		return INFINITY;
	return ms;
}

/* Keep the fastest of n algorithms.  False if none can be used or there is no memory to measure
 * them. */
static bool keep_fastest(struct cuda *c, struct gemm_plan *w, const struct cuda_gemm *p,
			 const cublasLtMatmulHeuristicResult_t *found, int n)
{
	const size_t size = p->wide ? sizeof(float) : c->base.act_size;
	cublasLtMatmulAlgo_t best;
	float least = INFINITY;
	void *out = NULL;

	if (cudaMallocAsync(&out, p->m * p->out_pitch * size, c->stream) != cudaSuccess) {
		cudaGetLastError();
		return false;
	}
	for (int i = 0; i < n; i++) {
		float ms;

		w->algo = found[i].algo;
		ms = time_of(c, w, p, out);
		if (ms < least) {
			least = ms;
			best = found[i].algo;
		}
	}
	CUDA_CALL(c, cudaFreeAsync, out, c->stream);
	if (isinf(least))
		return false;
	w->algo = best;
	return true;
}

/* Ask cuBLASLt for at most `most` algorithms, fastest first by its estimate.  It may have none for
 * an epilogue. */
static int suggest(struct cuda *c, const struct gemm_plan *w, const struct cuda_gemm *p,
		   cublasLtMatmulHeuristicResult_t *found, int most)
{
	cublasLtMatmulPreference_t preference;
	cublasStatus_t s = CUBLAS_STATUS_NOT_SUPPORTED;
	int n = 0, good = 0;

	if (!LT_CALL(c, cublasLtMatmulPreferenceCreate, &preference))
		return 0;
	if (set_limits(c, preference, p))
		s = c->gemm_cache->api->cublasLtMatmulAlgoGetHeuristic(c->gemm_cache->lt, w->desc,
								       w->b, w->a, w->out, w->out,
								       preference, most, found, &n);
	c->gemm_cache->api->cublasLtMatmulPreferenceDestroy(preference);
	for (int i = 0; s == CUBLAS_STATUS_SUCCESS && i < n; i++)
		if (found[i].state == CUBLAS_STATUS_SUCCESS)
			found[good++] = found[i];
	if (!good && p->epilogue == CUDA_EPILOGUE_NONE)
		lt_ok(c, s ? s : CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic");
	return good;
}

/* Measurements differ between runs: if results must not, use cuBLASLt's first suggestion. */
static bool cuda_gemm_choose(struct cuda *c, struct gemm_plan *w, const struct cuda_gemm *p)
{
	cublasLtMatmulHeuristicResult_t found[CANDIDATES];
	const int n = suggest(c, w, p, found, c->deterministic ? 1 : CANDIDATES);

	if (n > 1 && keep_fastest(c, w, p, found, n))
		return true;
	if (n)
		w->algo = found[0].algo;
	return n > 0;
}

static struct gemm_plan *plan_of(struct cuda *c, const struct cuda_gemm *p)
{
	struct gemm_cache *const all = c->gemm_cache;
	const void *const extra = p->epilogue == CUDA_EPILOGUE_GELU_GRAD ? p->aux : p->vector;
	const uint64_t key[KEY_LEN] = {
		p->m,
		p->n,
		p->k,
		p->a.pitch,
		p->b.pitch,
		p->out_pitch,
		p->a.transposed,
		p->b.transposed,
		p->wide,
		p->epilogue,
		p->add != NULL,
		alignment(p->a.p),
		alignment(p->b.p),
		alignment(p->add),
		alignment(p->out),
		alignment(extra),
	};
	struct gemm_plan *w;

	for (size_t i = 0; i < all->n; i++)
		if (memcmp(all->plans[i].key, key, sizeof(key)) == 0)
			return &all->plans[i];
	if (!array_reserve(&all->plans, &all->room, all->n + 1, sizeof(*all->plans))) {
		cuda_fail(c, -ENOMEM, "GEMM", "out of memory");
		return NULL;
	}
	w = &all->plans[all->n++];
	*w = (struct gemm_plan){ .can = false };
	memcpy(w->key, key, sizeof(key));
	w->can = cuda_gemm_describe(c, w, p) && cuda_gemm_lay_out(c, w, p) &&
		 cuda_gemm_choose(c, w, p);
	return w;
}

/* cuBLASLt's gelu uses the hardware's tanh with 11 significant bits: too few for float32, unless
 * tf32 limits the precision anyway. */
static bool is_exact(const struct cuda *c, const struct cuda_gemm *p)
{
	return c->base.dtype != DTYPE_F32 || c->tf32 || !p->aux;
}

static bool is_aligned(const struct cuda_gemm *p)
{
	return alignment(p->vector) >= EPILOGUE_ALIGNMENT &&
	       alignment(p->aux) >= EPILOGUE_ALIGNMENT;
}

bool cuda_gemm_run(struct cuda *c, const struct cuda_gemm *p)
{
	assert(p->epilogue != CUDA_EPILOGUE_BIAS || p->vector);
	struct gemm_plan *const w = is_exact(c, p) && is_aligned(p) ? plan_of(c, p) : NULL;
	cublasStatus_t s;

	if (!w || !w->can || !set_pointers(c, w->desc, p))
		return false;
	s = multiply(c, w, p, p->out);
	/* cuBLASLt rejects some unsupported problems only here. */
	if (s == CUBLAS_STATUS_NOT_SUPPORTED && p->epilogue != CUDA_EPILOGUE_NONE) {
		w->can = false;
		return false;
	}
	return lt_ok(c, s, "cublasLtMatmul");
}
