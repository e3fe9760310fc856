/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron's pipeline numbers its modules; module 0, before the embedding, has no parameters. */
#include "gpu/model/naming.h"

#include <stdio.h>
#include <string.h>

/* The number of the embedding among the pipeline's modules. */
#define LAYER_EMBED 1u

static void set_names(struct naming_tensor *t, enum naming_family family, const struct gpt2 *m,
		      const struct gpt2_param *p)
{
	const bool pipe = family == NAMING_MEGATRON;
	char unit[NAMING_NAME_MAX / 2];

	t->layer = LAYER_EMBED + p->unit;
	t->last = p->megatron;
	if (p->unit == GPT2_UNIT_EMBED)
		snprintf(unit, sizeof(unit),
			 pipe ? "tied_modules.embed" : "language_model.embedding");
	else if (pipe)
		snprintf(unit, sizeof(unit), "%u", t->layer);
	else if (p->unit == gpt2_unit_last(m))
		snprintf(unit, sizeof(unit), "language_model.encoder.final_layernorm");
	else
		snprintf(unit, sizeof(unit), "language_model.encoder.layers.%u",
			 p->unit - GPT2_UNIT_BLOCK(0));
	snprintf(t->name, sizeof(t->name), "%s.%s", unit, t->last);
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
	set_names(t, n->family, m, p);
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

/* Columns transposed at a time, each to its own cache line. */
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
