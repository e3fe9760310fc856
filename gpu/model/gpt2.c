/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the published models, and names of parameters: from Hugging Face's configurations and
 * state dicts. */
#include "gpu/model/gpt2.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"

/* Keeps every product of sizes, also in bytes, far below 2^63. */
#define SIZE_LIMIT (1u << 22)
#define LAYERS_LIMIT 4096u

static const struct {
	const char *name;
	unsigned n_layer, n_head, n_embd, vocab_size, n_positions;
} presets[] = {
	{ "gpt2-dsuc", 4, 4, 128, 50257, 1024 },      { "gpt2", 12, 12, 768, 50257, 1024 },
	{ "gpt2-medium", 24, 16, 1024, 50257, 1024 }, { "gpt2-large", 36, 20, 1280, 50257, 1024 },
	{ "gpt2-xl", 48, 25, 1600, 50257, 1024 },
};

int gpt2_preset(const char *name, struct gpt2_config *c, struct errmsg *err)
{
	char known[128] = "";

	for (size_t i = 0; i < COUNT(presets); i++) {
		if (strcmp(name, presets[i].name) == 0) {
			c->n_layer = presets[i].n_layer;
			c->n_head = presets[i].n_head;
			c->n_embd = presets[i].n_embd;
			c->vocab_size = presets[i].vocab_size;
			c->n_positions = presets[i].n_positions;
			return 0;
		}
		snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s",
			 i ? ", " : "", presets[i].name);
	}
	return errmsg_set(err, -ENOENT, "unknown model '%s'; known are %s", name, known);
}

/* How tensor-parallel ranks cut a parameter: along its last dimension; in thirds (queries, keys and
 * values), each along the last dimension; or along rows. */
enum cut { CUT_NONE, CUT_COLUMNS, CUT_THIRDS, CUT_ROWS };

/* A parameter of a unit: its name within the unit, its name in Megatron-DeepSpeed (GPTModelPipe and
 * GPTModel in its gpt_model.py, as found in files that it wrote), and its shape in multiples of the
 * width and of `rows`. */
struct shape {
	const char *name, *megatron;
	unsigned ndim;
	enum { ROWS_WIDTH, ROWS_WIDTH_4, ROWS_VOCAB, ROWS_POSITIONS } rows;
	unsigned cols; /* times the width; length of a 1-D parameter */
	enum cut cut;
};

static const struct shape embed_params[GPT2_EMBED_PARAMS] = {
	[GPT2_WTE] = { "wte.weight", "word_embeddings.weight", 2, ROWS_VOCAB, 1, CUT_ROWS },
	[GPT2_WPE] = { "wpe.weight", "position_embeddings.weight", 2, ROWS_POSITIONS, 1, CUT_NONE },
};

static const struct shape block_params[GPT2_BLOCK_PARAMS] = {
	[GPT2_LN_1_WEIGHT] = { "ln_1.weight", "input_layernorm.weight",
		1, ROWS_WIDTH, 1, CUT_NONE },
	[GPT2_LN_1_BIAS] = { "ln_1.bias", "input_layernorm.bias", 1, ROWS_WIDTH, 1, CUT_NONE },
	[GPT2_C_ATTN_WEIGHT] = { "attn.c_attn.weight", "self_attention.query_key_value.weight",
		2, ROWS_WIDTH, 3, CUT_THIRDS },
	[GPT2_C_ATTN_BIAS] = { "attn.c_attn.bias", "self_attention.query_key_value.bias",
		1, ROWS_WIDTH, 3, CUT_THIRDS },
	[GPT2_ATTN_PROJ_WEIGHT] = { "attn.c_proj.weight", "self_attention.dense.weight",
		2, ROWS_WIDTH, 1, CUT_ROWS },
	[GPT2_ATTN_PROJ_BIAS] = { "attn.c_proj.bias", "self_attention.dense.bias",
		1, ROWS_WIDTH, 1, CUT_NONE },
	[GPT2_LN_2_WEIGHT] = { "ln_2.weight", "post_attention_layernorm.weight",
		1, ROWS_WIDTH, 1, CUT_NONE },
	[GPT2_LN_2_BIAS] = { "ln_2.bias", "post_attention_layernorm.bias",
		1, ROWS_WIDTH, 1, CUT_NONE },
	[GPT2_C_FC_WEIGHT] = { "mlp.c_fc.weight", "mlp.dense_h_to_4h.weight",
		2, ROWS_WIDTH, 4, CUT_COLUMNS },
	[GPT2_C_FC_BIAS] = { "mlp.c_fc.bias", "mlp.dense_h_to_4h.bias",
		1, ROWS_WIDTH, 4, CUT_COLUMNS },
	[GPT2_MLP_PROJ_WEIGHT] = { "mlp.c_proj.weight", "mlp.dense_4h_to_h.weight",
		2, ROWS_WIDTH_4, 1, CUT_ROWS },
	[GPT2_MLP_PROJ_BIAS] = { "mlp.c_proj.bias", "mlp.dense_4h_to_h.bias",
		1, ROWS_WIDTH, 1, CUT_NONE },
};

static const struct shape last_params[GPT2_LAST_PARAMS] = {
	[GPT2_LN_F_WEIGHT] = { "ln_f.weight", "weight", 1, ROWS_WIDTH, 1, CUT_NONE },
	[GPT2_LN_F_BIAS] = { "ln_f.bias", "bias", 1, ROWS_WIDTH, 1, CUT_NONE },
};

static uint64_t shape_rows(const struct gpt2_config *c, const struct shape *s)
{
	switch (s->rows) {
	case ROWS_WIDTH_4:
		return (uint64_t)c->n_embd * 4;
	case ROWS_VOCAB:
		return c->vocab_size;
	case ROWS_POSITIONS:
		return c->n_positions;
	case ROWS_WIDTH:
		break;
	}
	return c->n_embd;
}

static uint64_t numel_of(unsigned ndim, const uint64_t *shape)
{
	return ndim == 1 ? shape[0] : shape[0] * shape[1];
}

/* Reduce the shape of a whole parameter to a rank's part. */
static void cut_param(struct gpt2_param *p, const struct gpt2_part *part, enum cut cut)
{
	uint64_t *const dim = &p->shape[p->ndim == 1 || cut == CUT_ROWS ? 0 : 1];

	p->parts = cut == CUT_NONE ? 1 : part->size;
	p->part = cut == CUT_NONE ? 0 : part->rank;
	/* Only the vocabulary may be indivisible. */
	*dim = (*dim + p->parts - 1) / p->parts;
	p->numel = numel_of(p->ndim, p->shape);
	p->run = p->parts == 1 || cut == CUT_ROWS ? p->numel : cut == CUT_THIRDS ? *dim / 3 : *dim;
}

uint64_t gpt2_whole_run(const struct gpt2_param *p, uint64_t first, uint64_t n, uint64_t *whole)
{
	const uint64_t within = first % p->run, left = p->run - within;

	assert(n && first + n <= p->numel);
	*whole = (first / p->run * p->parts + p->part) * p->run + within;
	return n < left ? n : left;
}

/* Append a unit of `n` parameters, whose names start with `prefix`; this rank has the first `here`
 * of them. */
static void add_unit(struct gpt2 *m, const char *prefix, const struct shape *s, size_t n,
		     size_t here)
{
	const struct gpt2_config *c = &m->config;
	struct gpt2_unit *u = &m->units[m->nunits];

	assert(m->nunits < m->config.n_layer + 2);
	*u = (struct gpt2_unit){ .first = m->nparams, .n = here };
	for (size_t i = 0; i < n; i++) {
		struct gpt2_param p = { .megatron = s[i].megatron, .ndim = s[i].ndim };
		uint64_t cols = (uint64_t)c->n_embd * s[i].cols;

		snprintf(p.name, sizeof(p.name), "%s%s", prefix, s[i].name);
		p.shape[0] = p.ndim == 1 ? cols : shape_rows(c, &s[i]);
		p.shape[1] = cols;
		memcpy(p.whole_shape, p.shape, sizeof(p.shape));
		p.whole_numel = numel_of(p.ndim, p.shape);
		m->whole_numel += p.whole_numel;
		p.number = m->nwhole++;
		if (i >= here)
			continue;
		cut_param(&p, &m->part, s[i].cut);
		p.unit = (unsigned)m->nunits;
		p.first = (p.parts > 1 || m->part.rank == 0) &&
			  (p.unit != GPT2_UNIT_EMBED || m->part.stage == 0);
		p.start = u->numel;
		u->numel += p.numel;
		m->params[m->nparams++] = p;
	}
	m->numel += u->numel;
	m->nunits++;
}

static int check_config(const struct gpt2_config *c, struct errmsg *err)
{
	const struct {
		const char *name;
		unsigned value, limit;
	} sizes[] = {
		{ "n_layer", c->n_layer, LAYERS_LIMIT },
		{ "n_head", c->n_head, SIZE_LIMIT },
		{ "n_embd", c->n_embd, SIZE_LIMIT },
		{ "vocab_size", c->vocab_size, SIZE_LIMIT },
		{ "n_positions", c->n_positions, SIZE_LIMIT },
	};

	for (size_t i = 0; i < COUNT(sizes); i++)
		if (sizes[i].value < 1 || sizes[i].value > sizes[i].limit)
			return errmsg_set(err, -EINVAL, "%s is %u; it must be 1 to %u",
					  sizes[i].name, sizes[i].value, sizes[i].limit);
	if (c->n_embd % c->n_head)
		return errmsg_set(err, -EINVAL, "n_embd %u is not a multiple of n_head %u",
				  c->n_embd, c->n_head);
	return 0;
}

/* Check that so many ranks can share the model. */
static int check_split(const struct gpt2_config *c, const struct gpt2_split *s, struct errmsg *err)
{
	const unsigned size = s->size;
	const unsigned rows = (c->vocab_size + size - 1) / size;

	if (c->n_head % size)
		return errmsg_set(err, -EINVAL,
				  "n_head %u is not a multiple of %u tensor-parallel ranks",
				  c->n_head, size);
	/* c->vocab_size is below 2^23: no product overflows. */
	if (size > c->vocab_size || rows * (size - 1) >= c->vocab_size)
		return errmsg_set(err, -EINVAL,
			"vocab_size %u leaves no token to the last of %u tensor-parallel ranks",
			c->vocab_size, size);
	if (s->stages > c->n_layer)
		return errmsg_set(err, -EINVAL, "n_layer %u is less than %u pipeline stages",
				  c->n_layer, s->stages);
	return 0;
}

/* The time of a step per parameter that tokens are multiplied with, relative to the time of its
 * update.  Measured on the CPU with 1,024 tokens per step: 39 ns in the passes, 4 ns in the
 * update. */
#define MULTIPLIED 11

/* Weights of a stage: per block, and for the extra layers of the first and the last stage. */
struct weights {
	uint64_t block, embed, head;
};

static struct weights weights_of(const struct gpt2_config *c, enum gpt2_partition partition)
{
	const uint64_t width = c->n_embd;

	switch (partition) {
	case GPT2_PARTITION_PARAMETERS:
		return (struct weights){
			.block = MULTIPLIED * (12 * width * width + 13 * width),
			.embed = (c->vocab_size + c->n_positions) * width,
			.head = MULTIPLIED * (c->vocab_size * width + 2 * width),
		};
	case GPT2_PARTITION_UNIFORM:
		return (struct weights){ .block = 1, .embed = 1, .head = 2 };
	case GPT2_PARTITION_BLOCKS:
		break;
	}
	return (struct weights){ .block = 1 };
}

/* The blocks of a stage: [*first, *end).  Each stage gets one block; every other block goes to the
 * stage that is lightest so far.  No other partition has a lighter heaviest stage. */
static void stage_blocks(const struct gpt2_config *c, const struct gpt2_split *s, unsigned *first,
			 unsigned *end)
{
	const struct weights w = weights_of(c, s->partition);
	unsigned blocks[LAYERS_LIMIT], left, i;

	for (i = 0; i < s->stages; i++)
		blocks[i] = 1;
	for (left = c->n_layer - s->stages; left; left--) {
		uint64_t least = UINT64_MAX;
		unsigned to = 0;

		for (i = 0; i < s->stages; i++) {
			const uint64_t weight = blocks[i] * w.block + (i ? 0 : w.embed) +
						(i + 1 == s->stages ? w.head : 0);

			if (weight < least) {
				least = weight;
				to = i;
			}
		}
		blocks[to]++;
	}
	for (*first = i = 0; i < s->stage; i++)
		*first += blocks[i];
	*end = *first + blocks[s->stage];
}

static struct gpt2_part part_of(const struct gpt2_config *c, const struct gpt2_split *s)
{
	const unsigned rows = (c->vocab_size + s->size - 1) / s->size;
	const unsigned first = rows * s->rank, left = c->vocab_size - first;
	struct gpt2_part part = {
		.rank = s->rank,
		.size = s->size,
		.stage = s->stage,
		.stages = s->stages,
		.n_head = c->n_head / s->size,
		.width = c->n_embd / s->size,
		.vocab_first = first,
		.vocab_size = left < rows ? left : rows,
	};

	stage_blocks(c, s, &part.first_layer, &part.end_layer);
	return part;
}

int gpt2_init(struct gpt2 *m, const struct gpt2_config *c, struct errmsg *err)
{
	return gpt2_init_part(m, c, &(struct gpt2_split){ .size = 1, .stages = 1 }, err);
}

/* Add all units, with this rank's parameters. */
static void add_units(struct gpt2 *m)
{
	const struct gpt2_part *p = &m->part;
	const bool last = p->stage + 1 == p->stages;
	char prefix[GPT2_NAME_MAX];

	add_unit(m, "transformer.", embed_params, GPT2_EMBED_PARAMS,
		 p->stage == 0 ? GPT2_EMBED_PARAMS
		 : last        ? GPT2_WTE + 1
			       : 0);
	for (unsigned layer = 0; layer < m->config.n_layer; layer++) {
		const bool here = layer >= p->first_layer && layer < p->end_layer;

		snprintf(prefix, sizeof(prefix), "transformer.h.%u.", layer);
		add_unit(m, prefix, block_params, GPT2_BLOCK_PARAMS, here ? GPT2_BLOCK_PARAMS : 0);
	}
	add_unit(m, "transformer.", last_params, GPT2_LAST_PARAMS, last ? GPT2_LAST_PARAMS : 0);
}

int gpt2_init_part(struct gpt2 *m, const struct gpt2_config *c, const struct gpt2_split *s,
		   struct errmsg *err)
{
	int rc = check_config(c, err);

	assert(s->rank < s->size && s->stage < s->stages);
	if (!rc)
		rc = check_split(c, s, err);
	if (rc)
		return rc;
	*m = (struct gpt2){ .config = *c, .part = part_of(c, s) };
	m->params = calloc(GPT2_EMBED_PARAMS + GPT2_LAST_PARAMS +
				   (size_t)c->n_layer * GPT2_BLOCK_PARAMS,
			   sizeof(*m->params));
	m->units = calloc(c->n_layer + 2, sizeof(*m->units));
	if (!m->params || !m->units) {
		gpt2_done(m);
		return errmsg_nomem(err, NULL);
	}
	add_units(m);
	return 0;
}

void gpt2_done(struct gpt2 *m)
{
	free(m->params);
	free(m->units);
	*m = (struct gpt2){ 0 };
}

unsigned gpt2_unit_last(const struct gpt2 *m)
{
	return GPT2_UNIT_BLOCK(m->config.n_layer);
}

double gpt2_flops_per_token(const struct gpt2 *m, size_t seq)
{
	return 6.0 * (double)m->whole_numel +
	       12.0 * m->config.n_layer * m->config.n_embd * (double)seq;
}
