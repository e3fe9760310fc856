/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's names are those of GPTModelPipe and GPTModel in Megatron-DeepSpeed
 * (megatron/model/gpt_model.py), as found in files that it wrote.  The modules of the pipeline
 * are numbered; 0, which has no parameters, is before the embedding.
 */
#include "gpu/model/naming.h"

#include <stdio.h>
#include <string.h>

/* The number of the embedding among the pipeline's modules. */
#define LAYER_EMBED 1u

static const char *const embed_names[GPT2_EMBED_PARAMS] = {
	[GPT2_WTE] = "word_embeddings.weight",
	[GPT2_WPE] = "position_embeddings.weight",
};

static const char *const block_names[GPT2_BLOCK_PARAMS] = {
	[GPT2_LN_1_WEIGHT] = "input_layernorm.weight",
	[GPT2_LN_1_BIAS] = "input_layernorm.bias",
	[GPT2_C_ATTN_WEIGHT] = "self_attention.query_key_value.weight",
	[GPT2_C_ATTN_BIAS] = "self_attention.query_key_value.bias",
	[GPT2_ATTN_PROJ_WEIGHT] = "self_attention.dense.weight",
	[GPT2_ATTN_PROJ_BIAS] = "self_attention.dense.bias",
	[GPT2_LN_2_WEIGHT] = "post_attention_layernorm.weight",
	[GPT2_LN_2_BIAS] = "post_attention_layernorm.bias",
	[GPT2_C_FC_WEIGHT] = "mlp.dense_h_to_4h.weight",
	[GPT2_C_FC_BIAS] = "mlp.dense_h_to_4h.bias",
	[GPT2_MLP_PROJ_WEIGHT] = "mlp.dense_4h_to_h.weight",
	[GPT2_MLP_PROJ_BIAS] = "mlp.dense_4h_to_h.bias",
};

static const char *const last_names[GPT2_LAST_PARAMS] = {
	[GPT2_LN_F_WEIGHT] = "weight",
	[GPT2_LN_F_BIAS] = "bias",
};

/* Set the names of parameter `at` of a unit. */
static void set_names(struct naming_tensor *t, enum naming_family family, const struct gpt2 *m,
		      unsigned unit, size_t at)
{
	const bool pipe = family == NAMING_MEGATRON;
	char prefix[NAMING_NAME_MAX / 2];

	t->layer = LAYER_EMBED + unit;
	if (unit == GPT2_UNIT_EMBED) {
		t->last = embed_names[at];
		snprintf(prefix, sizeof(prefix), "%s",
			 pipe ? "tied_modules.embed" : "language_model.embedding");
	} else if (unit == gpt2_unit_last(m)) {
		t->last = last_names[at];
		if (pipe)
			snprintf(prefix, sizeof(prefix), "%u", t->layer);
		else
			snprintf(prefix, sizeof(prefix), "language_model.encoder.final_layernorm");
	} else {
		t->last = block_names[at];
		if (pipe)
			snprintf(prefix, sizeof(prefix), "%u", t->layer);
		else
			snprintf(prefix, sizeof(prefix), "language_model.encoder.layers.%u",
				 unit - GPT2_UNIT_BLOCK(0));
	}
	snprintf(t->name, sizeof(t->name), "%s.%s", prefix, t->last);
}

void naming_tensor(struct naming_tensor *t, const struct naming *n, const struct gpt2 *m,
		   const struct gpt2_param *p)
{
	const size_t at = (size_t)(p - m->params) - m->units[p->unit].first;
	const bool block = p->unit != GPT2_UNIT_EMBED && p->unit != gpt2_unit_last(m);

	*t = (struct naming_tensor){ .ndim = p->ndim,
				     .shape = { p->shape[0], p->shape[1] },
				     .numel = p->numel };
	if (n->family == NAMING_HF) {
		snprintf(t->name, sizeof(t->name), "%s", p->name);
		t->last = t->name;
		return;
	}
	set_names(t, n->family, m, p->unit, at);
	t->qkv = block && (at == GPT2_C_ATTN_WEIGHT || at == GPT2_C_ATTN_BIAS);
	t->group = p->ndim == 1 ? NAMING_UNDECAYED : NAMING_DECAYED;
	t->transposed = block && p->ndim == 2;
	if (t->transposed) {
		t->shape[0] = p->shape[1];
		t->shape[1] = p->shape[0];
	}
	if (t->qkv && n->qkv == NAMING_QKV_HEADS) {
		t->heads = m->part.n_head;
		t->head_dim = m->part.width / m->part.n_head;
	}
}

uint64_t naming_row(const struct naming_tensor *t, uint64_t column)
{
	const uint64_t third = t->heads * t->head_dim;
	uint64_t head;

	if (!third)
		return column;
	head = column % third / t->head_dim;
	return (head * 3 + column / third) * t->head_dim + column % t->head_dim;
}

/* Columns that are transposed at a time: lines of the cache that are written to. */
#define COLUMNS 16u

static void transpose(const struct naming_tensor *t, float *to, const float *from)
{
	const uint64_t columns = t->shape[0], rows = t->shape[1];

	for (uint64_t c = 0; c < columns; c += COLUMNS) {
		const unsigned n = columns - c < COLUMNS ? (unsigned)(columns - c) : COLUMNS;
		float *row[COLUMNS];

		for (unsigned k = 0; k < n; k++)
			row[k] = to + naming_row(t, c + k) * rows;
		for (uint64_t r = 0; r < rows; r++)
			for (unsigned k = 0; k < n; k++)
				row[k][r] = from[r * columns + c + k];
	}
}

void naming_arrange(const struct naming_tensor *t, float *to, const float *from)
{
	if (t->transposed)
		transpose(t, to, from);
	else if (!t->heads)
		memcpy(to, from, t->numel * sizeof(*to));
	else
		for (uint64_t i = 0; i < t->numel; i++)
			to[naming_row(t, i)] = from[i];
}

unsigned naming_groups(enum naming_family family)
{
	return family == NAMING_HF ? 1 : NAMING_GROUPS;
}
