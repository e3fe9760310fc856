/* SPDX-License-Identifier: Apache-2.0 */
/* Model-states files of the checkpoints that tests make. */
#include <stdlib.h>
#include <string.h>

#include "tests/make/mkckpt_impl.h"

struct value *mkckpt_config(struct mkpt *m, const struct mkckpt *c)
{
	struct value *config = mkpt_dict(m), *zero = mkpt_dict(m);

	mkpt_set(m, zero, "stage", mkpt_int(m, c->stage));
	mkpt_set(m, zero, "round_robin_gradients", mkpt_bool(m, c->round_robin));
	mkpt_set(m, config, "zero_optimization", zero);
	if (c->data_first)
		mkpt_set(m, config, "use_data_before_expert_parallelism", mkpt_bool(m, true));
	return config;
}

static struct value *param_shapes(struct mkpt *m, const struct mkckpt *c, unsigned rank)
{
	struct value *list = mkpt_list(m);

	for (size_t g = 0; g < c->ngroups; g++) {
		struct value *d = mkpt_ordered_dict(m);
		struct mkckpt_view view;
		const struct mkckpt *own = mkckpt_view(&view, m, c, g, rank);
		size_t n, *order = mkckpt_order(own, g, c->round_robin && c->stage < 3, &n);

		for (size_t i = 0; i < n; i++) {
			const struct mkckpt_param *p = &own->params[order[i]];

			mkpt_set_new(m, d, p->name, mkpt_size(m, p->shape, p->ndim));
		}
		free(order);
		mkpt_add(m, list, d);
	}
	return list;
}

/* Store element i of an extra tensor, in its type. */
static void put_number(enum dtype dtype, uint8_t *to, uint64_t i)
{
	const unsigned n = i % 100;
	const double d = n;
	const float f = (float)n;
	const int64_t wide = n;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	switch (dtype) {
	case DTYPE_F64:
		memcpy(to, &d, sizeof(d));
		break;
	case DTYPE_F32:
		memcpy(to, &f, sizeof(f));
		break;
	case DTYPE_BF16:
		to[0] = (uint8_t)(bits >> 16);
		to[1] = (uint8_t)(bits >> 24);
		break;
	default:
		memcpy(to, &wide, dtype_size(dtype));
		break;
	}
}

struct value *mkckpt_extra_tensor(struct mkpt *m, const struct mkckpt_extra *e)
{
	const uint64_t n = mkckpt_numel(e->shape, e->ndim) + 2 * e->spare;
	const size_t item = dtype_size(e->dtype);
	uint8_t *v = mkckpt_must(calloc(n + 1, item));
	struct tensor t;

	for (uint64_t k = 0; k < n; k++)
		put_number(e->dtype, v + k * item, e->first + k);
	tensor_init(&t, e->dtype, e->shape, e->ndim, false);
	t.storage_offset = e->spare;
	t.storage_numel = n;
	t.storage_key = mkpt_add_storage(m, v, n * item);
	free(v);
	return mkckpt_must(tensor_to_value(&m->arena, &t));
}

static struct value *make_module(struct mkpt *m, const struct mkckpt *c)
{
	struct value *d = mkpt_ordered_dict(m);
	const uint64_t none = 0;

	for (size_t i = 0; i < c->nparams; i++) {
		const struct mkckpt_param *p = &c->params[i];
		const bool empty = c->stage == 3;
		void *zeros;

		if (mkckpt_layer_of(c, p->name))
			continue; /* experts have files of their own */
		zeros = mkckpt_must(calloc(mkckpt_numel(p->shape, p->ndim) + 1, 2));
		mkpt_set_new(m, d, p->name,
			     mkpt_tensor(m, DTYPE_BF16, empty ? &none : p->shape,
					 empty ? 1 : p->ndim, zeros));
		free(zeros);
	}
	for (size_t i = 0; i < c->nextras; i++)
		if (!mkckpt_layer_of(c, c->extras[i].name))
			mkpt_set(m, d, c->extras[i].name, mkckpt_extra_tensor(m, &c->extras[i]));
	return d;
}

/* Make the record that DeepSpeed writes since 2026. */
static struct value *dimensions(struct mkpt *m, const struct mkckpt *c)
{
	struct value *d = mkpt_dict(m);

	mkpt_set(m, d, "tp_degree", mkpt_int(m, c->tp));
	mkpt_set(m, d, "pp_degree", mkpt_int(m, c->pp));
	return d;
}

struct value *mkckpt_model(struct mkpt *m, const struct mkckpt *c, unsigned rank)
{
	const unsigned mp_degree = c->mp_world ?: c->tp && c->pp ? c->tp * c->pp : 1;
	struct value *root = mkpt_dict(m);

	mkpt_set(m, root, "module", make_module(m, c));
	mkpt_set(m, root, "buffer_names", mkpt_list(m));
	mkpt_set(m, root, "optimizer", mkpt_none(m));
	mkpt_set(m, root, "param_shapes", param_shapes(m, c, rank));
	/* In stages 2 and 3, None means that frozen parameters were left out. */
	mkpt_set(m, root, "frozen_param_shapes", c->stage > 1 ? mkpt_dict(m) : mkpt_none(m));
	mkpt_set(m, root, "shared_params", mkpt_dict(m));
	mkpt_set(m, root, "global_steps", mkpt_int(m, 4));
	mkpt_set(m, root, "dp_world_size", mkpt_int(m, c->ranks));
	mkpt_set(m, root, "mp_world_size", mkpt_int(m, mp_degree));
	if (c->tp && c->pp)
		mkpt_set(m, root, "checkpoint_parallel_dimensions", dimensions(m, c));
	mkpt_set(m, root, "ds_config", mkckpt_config(m, c));
	mkpt_set(m, root, "ds_version", mkpt_str(m, MKCKPT_DS_VERSION));
	mkpt_set(m, root, "universal_checkpoint_info", mkpt_dict(m));
	mkckpt_set_experts(m, c, root);
	return root;
}
