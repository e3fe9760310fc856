/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-DeepSpeed's files besides the optimizer: the weights of a pipeline's layers, or of its
 * model; the state of its scheduler, which counts samples; and the state that its script saves
 * (megatron/checkpointing.py), parts of which the loader compares with its own.  Forms and order
 * are taken from files that it wrote.
 */
#include <assert.h>
#include <string.h>

#include "gpu/save/save_impl.h"

/* With this version the loader does not reorder the rows of query_key_value. */
#define CHECKPOINT_VERSION 3.0

/* A tensor of the weights that this rank writes, with its own storage. */
static struct value *weights(const struct save *s, const struct order_tensor *x)
{
	const enum dtype dtype = s->zero->backend->dtype;
	const struct ptsave_storage own = {
		.dtype = dtype, .numel = x->t.numel, .p = x->weights, .wide = dtype != DTYPE_F32
	};

	assert(x->weights);
	return ptsave_tensor(s->pt, own, x->t.shape, x->t.ndim);
}

/* Return the first tensor of a unit in this rank's files. */
static const struct order_tensor *first_of_unit(const struct save *s, unsigned unit)
{
	const struct gpt2_unit *u = &s->zero->model->units[unit];
	const struct state_order *f = s->order;
	size_t i = 0;

	while (u->n && i < f->ntensors && f->tensors[i].param != u->first)
		i++;
	return u->n && f->tensors[i].weights ? &f->tensors[i] : NULL;
}

void save_layer(const struct save *s, unsigned unit, struct save_file *f)
{
	const struct gpt2_unit *u = &s->zero->model->units[unit];
	const struct order_tensor *first = first_of_unit(s, unit);

	if (!first)
		return;
	names_format((struct ckname){ .kind = CKPT_FILE_LAYER,
				      .mp = s->zero->model->part.rank,
				      .layer = first->t.layer },
		     false, f->name);
	f->root = value_new_ordered(s->a);
	for (size_t i = 0; i < u->n; i++)
		value_put(s->a, f->root, first[i].t.last, weights(s, &first[i]));
}

/* Return the part of a tensor's name after `prefix`; NULL if it has another prefix. */
static const char *behind(const struct order_tensor *x, const char *prefix)
{
	const size_t n = strlen(prefix);

	return strncmp(x->t.name, prefix, n) == 0 ? x->t.name + n : NULL;
}

/* Each embedding is a module with one parameter; the encoder is a module with all others. */
struct value *save_megatron_module(const struct save *s)
{
	static const char *const embeddings[] = { "word_embeddings", "position_embeddings" };
	struct value *embedding = value_new(s->a, VALUE_DICT);
	struct value *encoder = value_new_ordered(s->a);

	for (size_t i = 0; i < s->order->ntensors; i++) {
		const struct order_tensor *x = &s->order->tensors[i];
		const char *name = behind(x, "language_model.encoder.");
		struct value *v = s->zero->stage == 3 ? save_nothing(s) : weights(s, x);

		if (name) {
			value_put(s->a, encoder, name, v);
		} else {
			struct value *one = value_new_ordered(s->a);

			assert(x->param < GPT2_EMBED_PARAMS);
			value_put(s->a, one, "weight", v);
			value_put(s->a, embedding, embeddings[x->param], one);
		}
	}
	return value_dict_of(s->a, "language_model",
			      value_dict_of(s->a, "embedding", embedding, "encoder", encoder));
}

static const char *decay_style(const struct config *c)
{
	static const char *const styles[] = { [SCHEDULE_CONSTANT] = "constant",
					      [SCHEDULE_WARMUP] = "constant",
					      [SCHEDULE_COSINE] = "cosine",
					      [SCHEDULE_LINEAR] = "linear" };

	return styles[c->schedule.kind];
}

static double least_lr(const struct config *c)
{
	return c->schedule.kind == SCHEDULE_LINEAR ? c->schedule.start_lr : c->schedule.min_lr;
}

static uint64_t samples(const struct save *s, uint64_t steps)
{
	return steps * s->o->config->batch;
}

static uint64_t tokens(const struct save *s, uint64_t steps)
{
	return samples(s, steps) * s->o->config->seq_length;
}

struct value *save_megatron_schedule(const struct save *s)
{
	const struct config *c = s->o->config;
	const struct optimizer_config *o = &s->zero->optimizer;
	const uint64_t before = s->o->step ? s->o->step - 1 : 0;
	struct value *dict = value_new(s->a, VALUE_DICT);

	value_put(s->a, dict, "max_lr", o->lr);
	value_put(s->a, dict, "lr_warmup_steps", samples(s, c->schedule.warmup));
	value_put(s->a, dict, "lr_warmup_tokens", value_new(s->a, VALUE_NONE));
	value_put(s->a, dict, "num_steps", samples(s, s->o->step));
	value_put(s->a, dict, "num_tokens", tokens(s, before));
	value_put(s->a, dict, "lr_decay_style", decay_style(c));
	value_put(s->a, dict, "lr_decay_steps", samples(s, c->schedule.total));
	value_put(s->a, dict, "lr_decay_tokens", value_new(s->a, VALUE_NONE));
	value_put(s->a, dict, "min_lr", least_lr(c));
	value_put(s->a, dict, "start_wd", o->weight_decay);
	value_put(s->a, dict, "end_wd", o->weight_decay);
	value_put(s->a, dict, "wd_incr_style", "constant");
	value_put(s->a, dict, "wd_incr_steps", samples(s, c->steps));
	return dict;
}

static void add_model(const struct save *s, struct value *args)
{
	const struct config *c = s->o->config;
	const struct gpt2_config *m = &c->model;
	const uint64_t size = s->zero->model->part.size;
	const uint64_t rows = (m->vocab_size + size - 1) / size * size;

	value_put(s->a, args, "num_layers", m->n_layer);
	value_put(s->a, args, "encoder_num_layers", m->n_layer);
	value_put(s->a, args, "hidden_size", m->n_embd);
	value_put(s->a, args, "ffn_hidden_size", m->n_embd * UINT64_C(4));
	value_put(s->a, args, "num_attention_heads", m->n_head);
	value_put(s->a, args, "num_key_value_heads", m->n_head);
	value_put(s->a, args, "kv_channels", m->n_embd / m->n_head);
	value_put(s->a, args, "max_position_embeddings", m->n_positions);
	value_put(s->a, args, "seq_length", c->seq_length);
	value_put(s->a, args, "make_vocab_size_divisible_by", 1u);
	value_put(s->a, args, "padded_vocab_size", rows);
	value_put(s->a, args, "add_position_embedding", (bool)true);
	value_put(s->a, args, "use_rotary_position_embeddings", (bool)false);
	value_put(s->a, args, "untie_embeddings_and_output_weights", (bool)false);
	value_put(s->a, args, "add_bias_linear", (bool)true);
	value_put(s->a, args, "apply_layernorm_1p", (bool)false);
	value_put(s->a, args, "swiglu", (bool)false);
	/* The tanh approximation, as in Hugging Face's gelu_new. */
	value_put(s->a, args, "openai_gelu", (bool)true);
	/* Its presence tells loaders the order of query_key_value's rows. */
	if (s->order->naming.qkv == NAMING_QKV_THIRDS)
		value_put(s->a, args, "ds_sequence_parallel_fpdt", (bool)false);
	value_put(s->a, args, "normalization", "layernorm");
	value_put(s->a, args, "tokenizer_type", "GPT2BPETokenizer");
}

static void add_training(const struct save *s, struct value *args)
{
	const struct config *c = s->o->config;
	const struct optimizer_config *o = &s->zero->optimizer;
	const double dropout = (double)c->model.dropout;

	value_put(s->a, args, "rotary_percent", 1.0); /* unused by Megatron */
	value_put(s->a, args, "layernorm_epsilon", (double)c->model.layer_norm_epsilon);
	value_put(s->a, args, "attention_dropout", dropout);
	value_put(s->a, args, "hidden_dropout", dropout);
	value_put(s->a, args, "weight_decay", o->weight_decay);
	value_put(s->a, args, "start_weight_decay", o->weight_decay);
	value_put(s->a, args, "end_weight_decay", o->weight_decay);
	value_put(s->a, args, "clip_grad", c->gradient_clipping);
	value_put(s->a, args, "adam_beta1", o->beta1);
	value_put(s->a, args, "adam_beta2", o->beta2);
	value_put(s->a, args, "adam_eps", o->eps);
	value_put(s->a, args, "lr", o->lr);
	value_put(s->a, args, "min_lr", least_lr(c));
	value_put(s->a, args, "lr_decay_style", decay_style(c));
	value_put(s->a, args, "weight_decay_incr_style", "constant");
	value_put(s->a, args, "optimizer", "adam");
}

static void add_run(const struct save *s, struct value *args)
{
	const struct config *c = s->o->config;
	const bool pipe = s->order->naming.family != NAMING_MEGATRON_MODEL;

	value_put(s->a, args, "micro_batch_size", c->micro_batch);
	value_put(s->a, args, "global_batch_size", c->batch);
	value_put(s->a, args, "train_iters", c->steps);
	value_put(s->a, args, "seed", c->seed);
	value_put(s->a, args, "zero_stage", c->zero_stage);
	value_put(s->a, args, "rank", s->zero->world->rank);
	value_put(s->a, args, "world_size", s->zero->world->size);
	value_put(s->a, args, "data_parallel_size", c->data_parallel);
	value_put(s->a, args, "tensor_model_parallel_size", c->tensor_parallel);
	value_put(s->a, args, "pipeline_model_parallel_size", c->pipeline_parallel);
	value_put(s->a, args, "ds_sequence_parallel_size", c->sequence_parallel);
	value_put(s->a, args, "iteration", s->o->step);
	value_put(s->a, args, "consumed_train_samples", samples(s, s->o->step));
	value_put(s->a, args, "consumed_valid_samples", 0u);
	value_put(s->a, args, "consumed_train_tokens", tokens(s, s->o->step));
	value_put(s->a, args, "fp16", (bool)(c->dtype == DTYPE_F16));
	value_put(s->a, args, "bf16", (bool)(c->dtype == DTYPE_BF16));
	value_put(s->a, args, "sequence_parallel", c->cut_residual);
	value_put(s->a, args, "data_parallel_random_init", (bool)false);
	value_put(s->a, args, "no_pipeline_parallel", (bool)!pipe);
	value_put(s->a, args, "deepspeed", (bool)true);
}

void save_megatron_state(const struct save *s, struct value *root)
{
	struct value *args = value_new(s->a, VALUE_DICT);

	add_model(s, args);
	add_training(s, args);
	add_run(s, args);
	value_put(s->a, root, "args",
		  value_new_object(s->a, value_new_global(s->a, "argparse", "Namespace"), args));
	value_put(s->a, root, "checkpoint_version", CHECKPOINT_VERSION);
	value_put(s->a, root, "iteration", s->o->step);
	value_put(s->a, root, "tokens", tokens(s, s->o->step));
	value_put(s->a, root, "rng_state", save_megatron_rng(s));
}
