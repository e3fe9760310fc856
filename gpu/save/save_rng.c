/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generators of random numbers, as Megatron's script saves those of Python, numpy and torch: its
 * loader ends without them.  Our own need no state (data/rng.h), so each save writes fresh ones:
 * their seed depends on the run's seed, the step, the stage and the tensor-parallel rank.
 *
 * All are the Mersenne Twister MT19937 (Matsumoto, Nishimura, 1998), before their first number. A
 * device of NVIDIA has a counter instead, of which torch saves the seed and the offset.
 */
#include "gpu/backend/splitmix.h"
#include "gpu/data/rng.h"
#include "gpu/save/save_impl.h"

/* torch's state of a generator on the host (ATen/CPUGeneratorImpl.cpp). */
struct torch_generator {
	uint64_t seed;
	uint32_t left, seeded;
	uint64_t next, words[RNG_WORDS];
	double normal[5]; /* what is left over of normal numbers */
};

/* random.getstate() */
static struct value *python_state(struct ptsave *pt, const struct rng *t)
{
	struct value *words = ptsave_tuple(pt);

	for (unsigned i = 0; i < RNG_WORDS; i++)
		ptsave_add(pt, words, t->state[i]);
	ptsave_add(pt, words, RNG_WORDS);
	return ptsave_tuple_of(pt, 3u, words, ptsave_none(pt));
}

/* The bytes `p`, as protocol 2 writes them: encoded from a string with a character for each. */
static struct value *bytes_value(struct ptsave *pt, const void *p, size_t n)
{
	const uint8_t *const bytes = p;
	struct value *text = value_new_str(&pt->arena, "");
	char *const utf8 = arena_alloc(&pt->arena, 2 * n + 1);
	size_t len = 0;

	if (!utf8 || !text)
		return NULL;
	for (size_t i = 0; i < n; i++) {
		if (bytes[i] >= 0x80)
			utf8[len++] = (char)(0xc0 | bytes[i] >> 6);
		utf8[len++] = (char)(bytes[i] >= 0x80 ? 0x80 | (bytes[i] & 0x3f) : bytes[i]);
	}
	utf8[len] = '\0';
	text->str = (struct value_str){ utf8, len };
	return ptsave_apply(pt, "_codecs", "encode", ptsave_tuple_of(pt, text, "latin1"), NULL);
}

/* numpy.dtype('<u4') */
static struct value *words_dtype(struct ptsave *pt)
{
	struct value *none = ptsave_none(pt);

	return ptsave_apply(
		pt, "numpy", "dtype", ptsave_tuple_of(pt, "u4", (bool)false, (bool)true),
		ptsave_tuple_of(pt, 3u, "<", none, none, none, INT64_C(-1), INT64_C(-1), 0u));
}

/* An array of the words.  All versions of numpy find this function by this name. */
static struct value *words_array(struct ptsave *pt, const struct rng *t)
{
	return ptsave_apply(pt, "numpy.core.multiarray", "_reconstruct",
			    ptsave_tuple_of(pt, value_new_global(&pt->arena, "numpy", "ndarray"),
					    ptsave_tuple_of(pt, 0u), bytes_value(pt, "b", 1)),
			    ptsave_tuple_of(pt, 1u, ptsave_tuple_of(pt, RNG_WORDS), words_dtype(pt),
					    (bool)false,
					    bytes_value(pt, t->state, sizeof(t->state))));
}

/* numpy.random.get_state() */
static struct value *numpy_state(struct ptsave *pt, const struct rng *t)
{
	return ptsave_tuple_of(pt, "MT19937", words_array(pt, t), RNG_WORDS, 0u, 0.0);
}

static struct value *bytes_tensor(struct ptsave *pt, const void *p, uint64_t n)
{
	const struct ptsave_storage own = { .dtype = DTYPE_U8,
					    .numel = n,
					    .p = arena_copy(&pt->arena, p, n) };

	return ptsave_tensor(pt, own, &n, 1);
}

static struct value *torch_state(struct ptsave *pt, const struct rng *t)
{
	struct torch_generator g = { .seed = t->state[0], .left = 1, .seeded = 1 };

	for (unsigned i = 0; i < RNG_WORDS; i++)
		g.words[i] = t->state[i];
	return bytes_tensor(pt, &g, sizeof(g));
}

/* The state of a generator on the device: seed and offset. */
static struct value *device_state(const struct save *s, struct ptsave *pt, const struct rng *t)
{
	const uint64_t state[2] = { t->state[0] };

	return s->zero->backend->on_host ? torch_state(pt, t)
					 : bytes_tensor(pt, state, sizeof(state));
}

struct value *save_megatron_rng(const struct save *s, struct ptsave *pt)
{
	const struct gpt2_part *part = &s->zero->model->part;
	const uint64_t seed = splitmix64(s->o->config->seed, s->o->step + 1);
	struct value *dict = ptsave_dict(pt);
	struct rng of_stage, of_part;

	rng_seed(&of_stage, (uint32_t)splitmix64(seed, part->stage + 1));
	rng_seed(&of_part, (uint32_t)splitmix64(~seed, save_part(s) + 1));
	ptsave_set(pt, dict, "random_rng_state", python_state(pt, &of_stage));
	ptsave_set(pt, dict, "np_rng_state", numpy_state(pt, &of_stage));
	ptsave_set(pt, dict, "torch_rng_state", torch_state(pt, &of_stage));
	ptsave_set(pt, dict, "cuda_rng_state", device_state(s, pt, &of_stage));
	ptsave_set(pt, dict, "rng_tracker_states",
		   ptsave_dict_of(pt, "model-parallel-rng", device_state(s, pt, &of_part)));
	return ptsave_list_of(pt, dict);
}
