/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detection of Megatron-DeepSpeed's checkpoints, and the description of the model in `args`, a
 * Namespace in the model states.
 *
 * The commit that changed the order of query_key_value's rows (676a482c, of 2024-12-04) also
 * added --ds-sequence-parallel-fpdt to the arguments, all of which are saved: the arguments, if
 * present, show the order.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "ckpt/base/array.h"
#include "ckpt/format/names.h"
#include "ckpt/format/value.h"
#include "ckpt/table/checkpoint.h"
#include "gpu/load/load_impl.h"

#define FPDT "ds_sequence_parallel_fpdt"

/* Detect the family by the name of the token embedding. */
static enum naming_family find_family(const struct load *l)
{
	static const enum naming_family families[] = { NAMING_MEGATRON, NAMING_MEGATRON_MODEL };

	for (size_t i = 0; i < COUNT(families); i++) {
		const struct naming n = { .family = families[i] };
		char in_tree[sizeof("zero/") + NAMING_NAME_MAX];
		struct naming_tensor t;

		naming_tensor(&t, &n, &l->whole, &l->whole.params[GPT2_WTE]);
		snprintf(in_tree, sizeof(in_tree), "zero/%s", t.name);
		if (l->table ? checkpoint_find(l->table, t.name) != NULL
			     : load_mode(l->o->u, l->got->path, in_tree) != 0)
			return families[i];
	}
	return NAMING_HF;
}

/* An argument, whatever its value; NULL if it is missing. */
static const struct value *find_arg(const struct value *root, const char *name)
{
	const struct value *args = value_find(root, "args");

	return args && value_is_object(args) ? value_find(args->obj->state, name) : NULL;
}

static bool is_on(const struct value *root, const char *name)
{
	return value_is_true(find_arg(root, name));
}

static double float_arg(const struct value *root, const char *name)
{
	const struct value *v = find_arg(root, name);

	return v && v->kind == VALUE_FLOAT ? v->f : 0;
}

/* Check sizes that shapes do not show, and refuse variants of GPT other than GPT-2. */
static int check_args(const struct load *l, const struct value *root)
{
	static const char *const others[] = {
		"swiglu",
		"squared_relu",
		"use_rotary_position_embeddings",
		"apply_residual_connection_post_layernorm",
		"apply_layernorm_1p",
		"untie_embeddings_and_output_weights",
	};
	const struct gpt2_config *const model = &l->whole.config;
	const char *const dir = l->got->path;
	const struct value *eps = find_arg(root, "layernorm_epsilon");
	int64_t heads;

	for (size_t i = 0; i < COUNT(others); i++)
		if (is_on(root, others[i]))
			return errmsg_set(l->err, -EINVAL,
					  "%s: checkpoint of another model: it was trained with %s",
					  dir, others[i]);
	if (value_get_int(find_arg(root, "num_attention_heads"), &heads) && heads != model->n_head)
		return errmsg_set(
			l->err, -EINVAL,
			"%s: checkpoint of another model: it has %lld attention heads, this one has %u",
			dir, (long long)heads, model->n_head);
	if (eps && eps->kind == VALUE_FLOAT && (float)eps->f != model->layer_norm_epsilon)
		return errmsg_set(
			l->err, -EINVAL,
			"%s: checkpoint of another model: its norms have an epsilon of %g, this one's %g",
			dir, eps->f, (double)model->layer_norm_epsilon);
	return 0;
}

/* The number of tensor-parallel ranks that saved the checkpoint; 0 if it is not stored. */
static unsigned tensor_ranks(const struct value *root)
{
	const struct value *degrees = value_find(root, "checkpoint_parallel_dimensions");
	int64_t n = 0;

	if (!value_get_int(value_find(degrees, "tp_degree"), &n))
		value_get_int(find_arg(root, "tensor_model_parallel_size"), &n);
	return n > 0 && n <= UINT16_MAX ? (unsigned)n : 0;
}

int load_megatron(struct load *l, const struct value *root)
{
	struct load_metadata *const f = &l->metadata;

	f->naming.family = find_family(l);
	if (f->naming.family == NAMING_HF)
		return 0;
	f->tensor_ranks = tensor_ranks(root);
	if (find_arg(root, FPDT))
		f->told_qkv = NAMING_QKV_THIRDS;
	else if (find_arg(root, "num_attention_heads"))
		f->told_qkv = NAMING_QKV_HEADS;
	f->naming.qkv = l->o->qkv_order ? l->o->qkv_order : f->told_qkv;
	l->got->dropout =
		fmax(float_arg(root, "hidden_dropout"), float_arg(root, "attention_dropout"));
	/* Fused with the bias, gelu is the approximation by tanh, like ours. */
	l->got->exact_gelu = find_arg(root, "bias_gelu_fusion") &&
			     !is_on(root, "bias_gelu_fusion") && !is_on(root, "openai_gelu");
	return check_args(l, root);
}
