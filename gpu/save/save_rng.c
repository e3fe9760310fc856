/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States of random number generators, as Megatron's script saves them for Python, numpy and torch;
 * its loader fails without them.  Our own need no state (data/rng.h), so each save writes fresh
 * ones: their seed depends on the run's seed, the step, the stage and the tensor-parallel rank.
 *
 * All are MT19937 (Matsumoto, Nishimura, 1998), before their first number.  NVIDIA devices have a
 * counter-based generator, of which torch saves seed and offset.
 */
#include "gpu/backend/splitmix.h"
#include "gpu/data/rng.h"
#include "gpu/save/save_impl.h"

/* torch's state of a generator on the host (ATen/CPUGeneratorImpl.cpp). */
struct torch_generator {
	uint64_t seed;
	uint32_t left, seeded;
	uint64_t next, words[RNG_WORDS];
	double normal[5]; /* cached normal numbers */
};

/* The result of callable(*args), with `state` applied (NULL: none). */
static struct value *apply(struct arena *a, const char *module, const char *name,
			   struct value *args, struct value *state)
{
	struct value *v = value_new_reduce(a, value_new_global(a, module, name), args);

	if (v)
		v->obj->state = state;
	return v;
}

/* random.getstate() */
static struct value *python_state(struct arena *a, const struct rng *t)
{
	struct value *words = value_new(a, VALUE_TUPLE);

	for (unsigned i = 0; i < RNG_WORDS; i++)
		value_append(a, words, t->state[i]);
	value_append(a, words, RNG_WORDS);
	return value_tuple_of(a, 3u, words, value_new(a, VALUE_NONE));
}

/* The bytes `p`, as pickle protocol 2 writes them: encoded from a string with one character per
 * byte. */
static struct value *bytes_value(struct arena *a, const void *p, size_t n)
{
	const uint8_t *const bytes = p;
	struct value *text = value_new_str(a, "");
	char *const utf8 = arena_alloc(a, 2 * n + 1);
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
	return apply(a, "_codecs", "encode", value_tuple_of(a, text, "latin1"), NULL);
}

/* numpy.dtype('<u4') */
static struct value *words_dtype(struct arena *a)
{
	struct value *none = value_new(a, VALUE_NONE);

	return apply(a, "numpy", "dtype", value_tuple_of(a, "u4", (bool)false, (bool)true),
		     value_tuple_of(a, 3u, "<", none, none, none, INT64_C(-1), INT64_C(-1), 0u));
}

/* An array of the words.  All versions of numpy resolve the function by this name. */
static struct value *words_array(struct arena *a, const struct rng *t)
{
	return apply(a, "numpy.core.multiarray", "_reconstruct",
		     value_tuple_of(a, value_new_global(a, "numpy", "ndarray"),
				    value_tuple_of(a, 0u), bytes_value(a, "b", 1)),
		     value_tuple_of(a, 1u, value_tuple_of(a, RNG_WORDS), words_dtype(a),
				    (bool)false, bytes_value(a, t->state, sizeof(t->state))));
}

/* numpy.random.get_state() */
static struct value *numpy_state(struct arena *a, const struct rng *t)
{
	return value_tuple_of(a, "MT19937", words_array(a, t), RNG_WORDS, 0u, 0.0);
}

static struct value *bytes_tensor(const struct save *s, const void *p, uint64_t n)
{
	const struct ptsave_storage own = { .dtype = DTYPE_U8,
					    .numel = n,
					    .p = arena_copy(s->a, p, n) };

	return ptsave_tensor(s->pt, own, &n, 1);
}

static struct value *torch_state(const struct save *s, const struct rng *t)
{
	struct torch_generator g = { .seed = t->state[0], .left = 1, .seeded = 1 };

	for (unsigned i = 0; i < RNG_WORDS; i++)
		g.words[i] = t->state[i];
	return bytes_tensor(s, &g, sizeof(g));
}

/* The state of a generator on the device: seed and offset. */
static struct value *device_state(const struct save *s, const struct rng *t)
{
	const uint64_t state[2] = { t->state[0] };

	return s->zero->backend->on_host ? torch_state(s, t)
					 : bytes_tensor(s, state, sizeof(state));
}

struct value *save_megatron_rng(const struct save *s)
{
	const struct gpt2_part *part = &s->zero->model->part;
	const uint64_t seed = splitmix64(s->o->config->seed, s->o->step + 1);
	struct value *dict = value_new(s->a, VALUE_DICT);
	struct rng of_stage, of_part;

	rng_seed(&of_stage, (uint32_t)splitmix64(seed, part->stage + 1));
	rng_seed(&of_part, (uint32_t)splitmix64(~seed, save_part(s) + 1));
	value_put(s->a, dict, "random_rng_state", python_state(s->a, &of_stage));
	value_put(s->a, dict, "np_rng_state", numpy_state(s->a, &of_stage));
	value_put(s->a, dict, "torch_rng_state", torch_state(s, &of_stage));
	value_put(s->a, dict, "cuda_rng_state", device_state(s, &of_stage));
	value_put(s->a, dict, "rng_tracker_states",
		   value_dict_of(s->a, "model-parallel-rng", device_state(s, &of_part)));
	return value_list_of(s->a, dict);
}
