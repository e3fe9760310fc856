/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of matrices by cuBLASLt, and what it can do on the way out.  How it
 * does a product best is asked once for each that is different, and kept: the
 * same algorithm, and so the same result, every time.
 *
 * cuBLASLt counts by columns: our matrices are its transposed ones, and
 * (a * b)' = b' * a'.
 */
#include "gpu/cuda/cuda_gemm.h"

#include <cublasLt.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NVIDIA's advice for Hopper; older devices need less. */
#define WORKSPACE_BYTES ((size_t)32 << 20)

/* Alignments above do not matter to anybody. */
#define ALIGNMENT_MAX 256

/* What an epilogue reads and writes must be aligned to.  cuBLASLt does not say
 * so, and takes others; but then its kernels may fault (users of its bias have
 * met that below 8 and below 16), which ends all work on the device. */
#define EPILOGUE_ALIGNMENT 16

/* What products have in common that are done in one way.  No padding: it is
 * compared as bytes. */
struct key {
	size_t m, n, k, a_pitch, b_pitch, out_pitch;
	uint32_t a_align, b_align, add_align, out_align, vector_align;
	uint8_t a_transposed, b_transposed, add, wide;
	uint32_t epilogue, padding;
};

struct way {
	struct key key;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, out;
	cublasLtMatmulAlgo_t algo;
	bool can;
};

struct products {
	cublasLtHandle_t lt;
	void *workspace;
	struct way *ways;
	size_t n, room;
};

/* Was the call a success?  As cuda_ok. */
static bool lt_ok(struct cuda *c, cublasStatus_t s, const char *call)
{
	if (s == CUBLAS_STATUS_SUCCESS)
		return true;
	cuda_fail(c, s == CUBLAS_STATUS_ALLOC_FAILED ? -ENOMEM : -EIO, call,
		  cublasLtGetStatusString(s));
	return false;
}

int cuda_products_init(struct cuda *c)
{
	struct products *const p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	c->products = p;
	if (!lt_ok(c, cublasLtCreate(&p->lt), "cublasLtCreate"))
		return 0; /* for sync to tell */
	cuda_ok(c, cudaMallocAsync(&p->workspace, WORKSPACE_BYTES, c->stream),
		"workspace of cuBLASLt: cudaMallocAsync");
	return 0;
}

void cuda_products_done(struct cuda *c)
{
	struct products *const p = c->products;
	size_t i;

	if (!p)
		return;
	for (i = 0; i < p->n; i++) {
		cublasLtMatmulDescDestroy(p->ways[i].desc);
		cublasLtMatrixLayoutDestroy(p->ways[i].a);
		cublasLtMatrixLayoutDestroy(p->ways[i].b);
		cublasLtMatrixLayoutDestroy(p->ways[i].out);
	}
	if (p->lt)
		cublasLtDestroy(p->lt);
	if (p->workspace)
		cudaFreeAsync(p->workspace, c->stream);
	free(p->ways);
	free(p);
}

/* --- ways ------------------------------------------------------------------- */

static uint32_t alignment(const void *p)
{
	const uintptr_t at = (uintptr_t)p;
	uint32_t n = ALIGNMENT_MAX;

	while (at % n)
		n /= 2;
	return n;
}

static struct key key_of(const struct cuda_product *p)
{
	struct key k;

	memset(&k, 0, sizeof(k));
	k.m = p->m;
	k.n = p->n;
	k.k = p->k;
	k.a_pitch = p->a.pitch;
	k.b_pitch = p->b.pitch;
	k.out_pitch = p->out_pitch;
	k.a_align = alignment(p->a.p);
	k.b_align = alignment(p->b.p);
	k.add_align = alignment(p->add);
	k.out_align = alignment(p->out);
	k.vector_align = alignment(
		p->epilogue == CUDA_EPILOGUE_GELU_GRAD ? p->aux : p->vector);
	k.a_transposed = p->a.transposed;
	k.b_transposed = p->b.transposed;
	k.add = p->add != NULL;
	k.wide = p->wide;
	k.epilogue = p->epilogue;
	return k;
}

static cudaDataType_t type_of(const struct cuda *c, bool wide)
{
	if (wide || c->base.dtype == DTYPE_F32)
		return CUDA_R_32F;
	return c->base.dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static bool set(struct cuda *c, cublasLtMatmulDesc_t d,
		cublasLtMatmulDescAttributes_t what, const void *value,
		size_t size)
{
	return lt_ok(c, cublasLtMatmulDescSetAttribute(d, what, value, size),
		     "cublasLtMatmulDescSetAttribute");
}

/* Pointers of the epilogue differ between products that are done in one way. */
static bool set_pointers(struct cuda *c, cublasLtMatmulDesc_t d,
			 const struct cuda_product *p)
{
	return (!p->vector || set(c, d, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
				  &p->vector, sizeof(p->vector))) &&
	       (!p->aux || set(c, d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
			       &p->aux, sizeof(p->aux)));
}

static bool describe(struct cuda *c, struct way *w, const struct cuda_product *p)
{
	static const cublasLtEpilogue_t epilogues[] = {
		[CUDA_EPILOGUE_NONE] = CUBLASLT_EPILOGUE_DEFAULT,
		[CUDA_EPILOGUE_BIAS] = CUBLASLT_EPILOGUE_BIAS,
		[CUDA_EPILOGUE_BIAS_GELU] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
		[CUDA_EPILOGUE_GELU_GRAD] = CUBLASLT_EPILOGUE_DGELU,
		/* b is the first factor there */
		[CUDA_EPILOGUE_SUMS] = CUBLASLT_EPILOGUE_BGRADA,
	};
	const cublasComputeType_t compute =
		c->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
	const cublasOperation_t a = p->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
	const cublasOperation_t b = p->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
	const int64_t pitch = (int64_t)p->out_pitch;

	return lt_ok(c, cublasLtMatmulDescCreate(&w->desc, compute, CUDA_R_32F),
		     "cublasLtMatmulDescCreate") &&
	       set(c, w->desc, CUBLASLT_MATMUL_DESC_TRANSA, &b, sizeof(b)) &&
	       set(c, w->desc, CUBLASLT_MATMUL_DESC_TRANSB, &a, sizeof(a)) &&
	       set(c, w->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
		   &epilogues[p->epilogue], sizeof(epilogues[0])) &&
	       (!p->aux || set(c, w->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
			       &pitch, sizeof(pitch))) &&
	       set_pointers(c, w->desc, p);
}

/* A matrix of ours, as it lies in memory. */
static bool layout(struct cuda *c, cublasLtMatrixLayout_t *out, bool wide,
		   size_t rows, size_t columns, size_t pitch)
{
	return lt_ok(c,
		     cublasLtMatrixLayoutCreate(out, type_of(c, wide), columns,
						rows, (int64_t)pitch),
		     "cublasLtMatrixLayoutCreate");
}

static bool lay_out(struct cuda *c, struct way *w, const struct cuda_product *p)
{
	return layout(c, &w->a, false, p->a.transposed ? p->k : p->m,
		      p->a.transposed ? p->m : p->k, p->a.pitch) &&
	       layout(c, &w->b, false, p->b.transposed ? p->n : p->k,
		      p->b.transposed ? p->k : p->n, p->b.pitch) &&
	       layout(c, &w->out, p->wide, p->m, p->n, p->out_pitch);
}

static bool limit(struct cuda *c, cublasLtMatmulPreference_t preference,
		  cublasLtMatmulPreferenceAttributes_t what, const void *value,
		  size_t size)
{
	return lt_ok(c,
		     cublasLtMatmulPreferenceSetAttribute(preference, what,
							  value, size),
		     "cublasLtMatmulPreferenceSetAttribute");
}

static bool set_limits(struct cuda *c, cublasLtMatmulPreference_t preference,
		       const struct key *k)
{
	const size_t workspace = WORKSPACE_BYTES;
	const uint32_t add = k->add ? k->add_align : k->out_align;

	return limit(c, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
		     &workspace, sizeof(workspace)) &&
	       limit(c, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
		     &k->b_align, sizeof(k->b_align)) &&
	       limit(c, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		     &k->a_align, sizeof(k->a_align)) &&
	       limit(c, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
		     &add, sizeof(add)) &&
	       limit(c, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
		     &k->out_align, sizeof(k->out_align));
}

/* Ask cuBLASLt.  That it knows no way is an answer. */
static bool choose(struct cuda *c, struct way *w)
{
	cublasLtMatmulHeuristicResult_t best;
	cublasLtMatmulPreference_t preference;
	cublasStatus_t s = CUBLAS_STATUS_NOT_SUPPORTED;
	int n = 0;

	if (!lt_ok(c, cublasLtMatmulPreferenceCreate(&preference),
		   "cublasLtMatmulPreferenceCreate"))
		return false;
	if (set_limits(c, preference, &w->key))
		s = cublasLtMatmulAlgoGetHeuristic(c->products->lt, w->desc,
						   w->b, w->a, w->out, w->out,
						   preference, 1, &best, &n);
	cublasLtMatmulPreferenceDestroy(preference);
	w->can = s == CUBLAS_STATUS_SUCCESS && n > 0 &&
		 best.state == CUBLAS_STATUS_SUCCESS;
	if (w->can)
		w->algo = best.algo;
	else if (w->key.epilogue == CUDA_EPILOGUE_NONE)
		lt_ok(c, s ? s : CUBLAS_STATUS_NOT_SUPPORTED,
		      "cublasLtMatmulAlgoGetHeuristic");
	return w->can;
}

static struct way *new_way(struct products *all)
{
	if (all->n == all->room) {
		const size_t room = all->room ? 2 * all->room : 32;
		struct way *const more =
			realloc(all->ways, room * sizeof(*more));

		if (!more)
			return NULL;
		all->ways = more;
		all->room = room;
	}
	all->ways[all->n] = (struct way){ .can = false };
	return &all->ways[all->n++];
}

static struct way *way_of(struct cuda *c, const struct cuda_product *p)
{
	struct products *const all = c->products;
	const struct key key = key_of(p);
	struct way *w;
	size_t i;

	for (i = 0; i < all->n; i++)
		if (memcmp(&all->ways[i].key, &key, sizeof(key)) == 0)
			return &all->ways[i];
	w = new_way(all);
	if (!w) {
		cuda_fail(c, -ENOMEM, "a product of matrices", "out of memory");
		return NULL;
	}
	w->key = key;
	w->can = describe(c, w, p) && lay_out(c, w, p) && choose(c, w);
	return w;
}

/* Its gelu takes tanh from the hardware, which has 11 bits of it: too few for
 * float32, unless the factors have no more. */
static bool is_exact(const struct cuda *c, const struct cuda_product *p)
{
	return c->base.dtype != DTYPE_F32 || c->tf32 || !p->aux;
}

static bool is_aligned(const struct cuda_product *p)
{
	return alignment(p->vector) >= EPILOGUE_ALIGNMENT &&
	       alignment(p->aux) >= EPILOGUE_ALIGNMENT;
}

bool cuda_multiply(struct cuda *c, const struct cuda_product *p)
{
	const float alpha = 1, beta = p->add ? 1 : 0;
	struct way *const w =
		is_exact(c, p) && is_aligned(p) ? way_of(c, p) : NULL;
	cublasStatus_t s;

	if (!w || !w->can || !set_pointers(c, w->desc, p))
		return false;
	s = cublasLtMatmul(c->products->lt, w->desc, &alpha, p->b.p, w->b,
			   p->a.p, w->a, &beta, p->add ? p->add : p->out,
			   w->out, p->out, w->out, &w->algo,
			   c->products->workspace, WORKSPACE_BYTES, c->stream);
	/* Not all that cannot be done is known before. */
	if (s == CUBLAS_STATUS_NOT_SUPPORTED &&
	    p->epilogue != CUDA_EPILOGUE_NONE) {
		w->can = false;
		return false;
	}
	return lt_ok(c, s, "cublasLtMatmul");
}
