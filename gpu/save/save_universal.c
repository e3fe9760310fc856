/* SPDX-License-Identifier: Apache-2.0 */
/*
 * universal_checkpoint_info, version 0.4: how the slices of tensor-parallel ranks
 * make whole parameters, as regular expressions of names (DeepSpeed's
 * checkpoint/constants.py and ds_to_universal.py).  What no pattern matches is cut
 * along dimension 0.  "Row parallelism" means there that dimension 1 is cut: of
 * Conv1D's matrices, which are transposed, those that are called column-parallel
 * elsewhere.  A run without tensor parallelism writes the same, for those that
 * resume with it.
 */
#include "ckpt/base/errmsg.h"
#include "ckpt/pickle/value.h"
#include "gpu/save/save_impl.h"

#define BLOCK "^transformer\\.h\\.\\d+\\."
#define THIRDS 3

static const char *const vocabulary[] = { "^transformer\\.wte\\.weight$", NULL };
static const char *const replicated[] = { "^transformer\\.wpe\\.weight$",
					  BLOCK "ln_[12]\\.(weight|bias)$",
					  BLOCK "(attn|mlp)\\.c_proj\\.bias$",
					  "^transformer\\.ln_f\\.(weight|bias)$",
					  NULL };
static const char *const second_dimension[] = { BLOCK "mlp\\.c_fc\\.weight$",
						NULL };
#define QUERIES_KEYS_VALUES BLOCK "attn\\.c_attn\\."

static void add_list(struct ptsave *pt, struct value *info, const char *key,
		     const char *const *patterns)
{
	struct value *list = ptsave_list(pt);

	for (; *patterns; patterns++)
		ptsave_add(pt, list, ptsave_str(pt, *patterns));
	ptsave_set(pt, info, key, list);
}

static struct value *copies(struct ptsave *pt, struct value *seq, size_t n,
			    unsigned size)
{
	for (size_t i = 0; i < n; i++)
		ptsave_add(pt, seq, ptsave_int(pt, size));
	return seq;
}

/* Queries, keys and values are cut each by itself, along the last dimension. */
static void add_thirds(const struct save *s, struct ptsave *pt,
		       struct value *list, struct value *widths,
		       const char *pattern, unsigned ndim)
{
	const struct gpt2 *m = s->zero->model;
	const unsigned width = m->config.n_embd;
	struct value *spec = ptsave_dict(pt), *shape = ptsave_tuple(pt);
	struct value *of_parts = ptsave_list(pt), *names = ptsave_list(pt);

	ptsave_add(pt, names, ptsave_str(pt, pattern));
	if (ndim == 2)
		ptsave_add(pt, shape, ptsave_int(pt, width));
	ptsave_add(pt, shape, copies(pt, ptsave_tuple(pt), THIRDS, width));
	ptsave_set(pt, spec, "patterns", names);
	ptsave_set(pt, spec, "shape", shape);
	ptsave_set(pt, spec, "partition_dim", ptsave_int(pt, ndim - 1));
	ptsave_add(pt, list, spec);
	for (unsigned i = 0; i < THIRDS; i++)
		ptsave_add(pt, of_parts,
			   copies(pt, ptsave_list(pt), m->part.size,
				  m->part.width));
	ptsave_set(pt, widths, pattern, of_parts);
}

/*
 * Converters cut the vocabulary to its original size where a pattern says which
 * parameter has it.  Ranks may have padding that only fills them up, which goes.
 * Other padding is the user's and is trained: without a pattern it stays, and a
 * run with the same padding loses nothing.
 */
static void add_vocabulary(const struct save *s, struct ptsave *pt,
			   struct value *info)
{
	const struct gpt2 *m = s->zero->model;
	const unsigned words = m->config.vocab_size;
	const unsigned size = m->part.size;
	const uint64_t rows = (uint64_t)(words + size - 1) / size * size;
	const bool padded = s->o->vocab_rows && s->o->vocab_rows < words;
	const uint64_t original =
		padded && rows == words ? s->o->vocab_rows : words;

	ptsave_set(pt, info, "original_vocab_size",
		   ptsave_int(pt, (int64_t)original));
	ptsave_set(pt, info, "padded_vocab_size", ptsave_int(pt, (int64_t)rows));
	if (original == words)
		add_list(pt, info, "vocabulary_parameter_patterns", vocabulary);
}

struct value *save_universal_info(const struct save *s, struct ptsave *pt)
{
	struct value *info = ptsave_dict(pt), *list = ptsave_list(pt);
	struct value *widths = ptsave_dict(pt);

	ptsave_set(pt, info, "universal_checkpoint_version",
		   ptsave_float(pt, 0.4));
	add_vocabulary(s, pt, info);
	if (s->zero->model->part.stages > 1)
		add_list(pt, info, "pipeline_replicated_parameter_patterns",
			 vocabulary);
	add_list(pt, info, "tp_replicated_parameter_patterns", replicated);
	add_list(pt, info, "parameter_with_row_parallelism_patterns",
		 second_dimension);
	add_thirds(s, pt, list, widths, QUERIES_KEYS_VALUES "weight$", 2);
	add_thirds(s, pt, list, widths, QUERIES_KEYS_VALUES "bias$", 1);
	ptsave_set(pt, info, "parameter_with_sub_params", list);
	ptsave_set(pt, info, "sub_param_shard_widths", widths);
	return info;
}
