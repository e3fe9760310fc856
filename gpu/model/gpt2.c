/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the published models and names of parameters are those of Hugging
 * Face's configurations and state dicts. */
#include "gpu/model/gpt2.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"

/* Keeps every product of sizes, also in bytes, far below 2^63. */
#define SIZE_LIMIT (1u << 22)
#define LAYERS_LIMIT 4096u

static const struct {
	const char *name;
	unsigned n_layer, n_head, n_embd, vocab_size, n_positions;
} presets[] = {
	{ "gpt2-dsuc", 4, 4, 128, 50257, 1024 },
	{ "gpt2", 12, 12, 768, 50257, 1024 },
	{ "gpt2-medium", 24, 16, 1024, 50257, 1024 },
	{ "gpt2-large", 36, 20, 1280, 50257, 1024 },
	{ "gpt2-xl", 48, 25, 1600, 50257, 1024 },
};

#define NPRESETS (sizeof(presets) / sizeof(presets[0]))

int gpt2_preset(const char *name, struct gpt2_config *c, struct errmsg *err)
{
	char known[128] = "";
	size_t i;

	for (i = 0; i < NPRESETS; i++) {
		if (strcmp(name, presets[i].name) == 0) {
			c->n_layer = presets[i].n_layer;
			c->n_head = presets[i].n_head;
			c->n_embd = presets[i].n_embd;
			c->vocab_size = presets[i].vocab_size;
			c->n_positions = presets[i].n_positions;
			return 0;
		}
		snprintf(known + strlen(known), sizeof(known) - strlen(known),
			 "%s%s", i ? ", " : "", presets[i].name);
	}
	return errmsg_set(err, -ENOENT, "unknown model '%s'; known are %s",
			  name, known);
}

/* A parameter of a unit: its name within the unit, and its shape in multiples
 * of the width and of `rows`. */
struct shape {
	const char *name;
	unsigned ndim;
	enum { ROWS_WIDTH, ROWS_WIDTH_4, ROWS_VOCAB, ROWS_POSITIONS } rows;
	unsigned cols; /* times the width; the length of a 1-D parameter */
};

static const struct shape embed_params[GPT2_EMBED_PARAMS] = {
	[GPT2_WTE] = { "wte.weight", 2, ROWS_VOCAB, 1 },
	[GPT2_WPE] = { "wpe.weight", 2, ROWS_POSITIONS, 1 },
};

static const struct shape block_params[GPT2_BLOCK_PARAMS] = {
	[GPT2_LN_1_WEIGHT] = { "ln_1.weight", 1, ROWS_WIDTH, 1 },
	[GPT2_LN_1_BIAS] = { "ln_1.bias", 1, ROWS_WIDTH, 1 },
	[GPT2_C_ATTN_WEIGHT] = { "attn.c_attn.weight", 2, ROWS_WIDTH, 3 },
	[GPT2_C_ATTN_BIAS] = { "attn.c_attn.bias", 1, ROWS_WIDTH, 3 },
	[GPT2_ATTN_PROJ_WEIGHT] = { "attn.c_proj.weight", 2, ROWS_WIDTH, 1 },
	[GPT2_ATTN_PROJ_BIAS] = { "attn.c_proj.bias", 1, ROWS_WIDTH, 1 },
	[GPT2_LN_2_WEIGHT] = { "ln_2.weight", 1, ROWS_WIDTH, 1 },
	[GPT2_LN_2_BIAS] = { "ln_2.bias", 1, ROWS_WIDTH, 1 },
	[GPT2_C_FC_WEIGHT] = { "mlp.c_fc.weight", 2, ROWS_WIDTH, 4 },
	[GPT2_C_FC_BIAS] = { "mlp.c_fc.bias", 1, ROWS_WIDTH, 4 },
	[GPT2_MLP_PROJ_WEIGHT] = { "mlp.c_proj.weight", 2, ROWS_WIDTH_4, 1 },
	[GPT2_MLP_PROJ_BIAS] = { "mlp.c_proj.bias", 1, ROWS_WIDTH, 1 },
};

static const struct shape last_params[GPT2_LAST_PARAMS] = {
	[GPT2_LN_F_WEIGHT] = { "ln_f.weight", 1, ROWS_WIDTH, 1 },
	[GPT2_LN_F_BIAS] = { "ln_f.bias", 1, ROWS_WIDTH, 1 },
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

/* Append a unit of `n` parameters, whose names start with `prefix`. */
static void add_unit(struct gpt2 *m, const char *prefix, const struct shape *s,
		     size_t n)
{
	const struct gpt2_config *c = &m->config;
	struct gpt2_unit *u = &m->units[m->nunits];
	size_t i;

	assert(m->nunits < m->config.n_layer + 2);
	*u = (struct gpt2_unit){ .first = m->nparams, .n = n };
	for (i = 0; i < n; i++) {
		struct gpt2_param *p = &m->params[m->nparams++];
		uint64_t cols = (uint64_t)c->n_embd * s[i].cols;

		snprintf(p->name, sizeof(p->name), "%s%s", prefix, s[i].name);
		p->ndim = s[i].ndim;
		p->shape[0] = p->ndim == 1 ? cols : shape_rows(c, &s[i]);
		p->shape[1] = cols;
		p->numel = p->ndim == 1 ? cols : p->shape[0] * cols;
		p->unit = (unsigned)m->nunits;
		p->start = u->numel;
		u->numel += p->numel;
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
	size_t i;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		if (sizes[i].value < 1 || sizes[i].value > sizes[i].limit)
			return errmsg_set(err, -EINVAL,
					  "%s is %u; it must be 1 to %u",
					  sizes[i].name, sizes[i].value,
					  sizes[i].limit);
	if (c->n_embd % c->n_head)
		return errmsg_set(err, -EINVAL,
				  "n_embd %u is not a multiple of n_head %u",
				  c->n_embd, c->n_head);
	return 0;
}

int gpt2_init(struct gpt2 *m, const struct gpt2_config *c, struct errmsg *err)
{
	char prefix[GPT2_NAME_MAX];
	unsigned layer;
	int rc = check_config(c, err);

	if (rc)
		return rc;
	*m = (struct gpt2){ .config = *c };
	m->params = calloc(GPT2_EMBED_PARAMS + GPT2_LAST_PARAMS +
				   (size_t)c->n_layer * GPT2_BLOCK_PARAMS,
			   sizeof(*m->params));
	m->units = calloc(c->n_layer + 2, sizeof(*m->units));
	if (!m->params || !m->units) {
		gpt2_done(m);
		return errmsg_nomem(err, NULL);
	}
	add_unit(m, "transformer.", embed_params, GPT2_EMBED_PARAMS);
	for (layer = 0; layer < c->n_layer; layer++) {
		snprintf(prefix, sizeof(prefix), "transformer.h.%u.", layer);
		add_unit(m, prefix, block_params, GPT2_BLOCK_PARAMS);
	}
	add_unit(m, "transformer.", last_params, GPT2_LAST_PARAMS);
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
