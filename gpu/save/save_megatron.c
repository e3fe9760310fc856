/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Megatron-DeepSpeed's files have beside the optimizer: the weights of a pipeline's layers,
 * or of its model; the state of its scheduler, which counts samples; and what its script saves
 * (megatron/checkpointing.py), of which the loader compares some with its own.  Forms and order
 * are those of files that it wrote.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "gpu/save/save_impl.h"

/* Rows of query_key_value are not mended by the loader. */
#define CHECKPOINT_VERSION 3.0

/* A tensor of the weights that this rank writes, in a storage of its own. */
static struct value *weights(const struct save *s, struct ptsave *pt, const struct form_tensor *x)
{
	const enum dtype dtype = s->zero->backend->dtype;
	const struct ptsave_storage own = {
		.dtype = dtype, .numel = x->t.numel, .p = x->weights, .wide = dtype != DTYPE_F32
	};

	assert(x->weights);
	return ptsave_tensor(pt, own, x->t.shape, x->t.ndim);
}

/* The first tensor of a unit that this rank has in its files. */
static const struct form_tensor *first_of_unit(const struct save *s, unsigned unit)
{
	const struct gpt2_unit *u = &s->zero->model->units[unit];
	const struct form *f = s->form;
	size_t i = 0;

	while (u->n && i < f->ntensors && f->tensors[i].param != u->first)
		i++;
	return u->n && f->tensors[i].weights ? &f->tensors[i] : NULL;
}

void save_layer(const struct save *s, unsigned unit, struct save_file *f)
{
	const struct gpt2_unit *u = &s->zero->model->units[unit];
	const struct form_tensor *first = first_of_unit(s, unit);

	if (!first)
		return;
	snprintf(f->name, sizeof(f->name), "layer_%02u-model_%02u-model_states.pt", first->t.layer,
		 s->zero->model->part.rank);
	f->root = ptsave_ordered_dict(&f->pt);
	for (size_t i = 0; i < u->n; i++)
		ptsave_set(&f->pt, f->root, first[i].t.last, weights(s, &f->pt, &first[i]));
}

/* A tensor's name behind `prefix`; NULL if it begins otherwise. */
static const char *behind(const struct form_tensor *x, const char *prefix)
{
	const size_t n = strlen(prefix);

	return strncmp(x->t.name, prefix, n) == 0 ? x->t.name + n : NULL;
}

/* The embeddings are modules, each with its one parameter; the encoder is one with all others. */
struct value *save_megatron_module(const struct save *s, struct ptsave *pt)
{
	static const char *const embeddings[] = { "word_embeddings", "position_embeddings" };
	struct value *embedding = ptsave_dict(pt);
	struct value *encoder = ptsave_ordered_dict(pt);

	for (size_t i = 0; i < s->form->ntensors; i++) {
		const struct form_tensor *x = &s->form->tensors[i];
		const char *name = behind(x, "language_model.encoder.");
		struct value *v = s->zero->stage == 3 ? save_nothing(s, pt) : weights(s, pt, x);

		if (name) {
			ptsave_set(pt, encoder, name, v);
		} else {
			struct value *one = ptsave_ordered_dict(pt);

			assert(x->param < GPT2_EMBED_PARAMS);
			ptsave_set(pt, one, "weight", v);
			ptsave_set(pt, embedding, embeddings[x->param], one);
		}
	}
	return ptsave_dict_of(pt, "language_model",
			      ptsave_dict_of(pt, "embedding", embedding, "encoder", encoder));
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

struct value *save_megatron_schedule(const struct save *s, struct ptsave *pt)
{
	const struct config *c = s->o->config;
	const struct optimizer_config *o = &s->zero->optimizer;
	const uint64_t before = s->o->step ? s->o->step - 1 : 0;
	struct value *dict = ptsave_dict(pt);

	ptsave_set(pt, dict, "max_lr", o->lr);
	ptsave_set(pt, dict, "lr_warmup_steps", samples(s, c->schedule.warmup));
	ptsave_set(pt, dict, "lr_warmup_tokens", ptsave_none(pt));
	ptsave_set(pt, dict, "num_steps", samples(s, s->o->step));
	ptsave_set(pt, dict, "num_tokens", tokens(s, before));
	ptsave_set(pt, dict, "lr_decay_style", decay_style(c));
	ptsave_set(pt, dict, "lr_decay_steps", samples(s, c->schedule.total));
	ptsave_set(pt, dict, "lr_decay_tokens", ptsave_none(pt));
	ptsave_set(pt, dict, "min_lr", least_lr(c));
	ptsave_set(pt, dict, "start_wd", o->weight_decay);
	ptsave_set(pt, dict, "end_wd", o->weight_decay);
	ptsave_set(pt, dict, "wd_incr_style", "constant");
	ptsave_set(pt, dict, "wd_incr_steps", samples(s, c->steps));
	return dict;
}

static void add_model(const struct save *s, struct ptsave *pt, struct value *args)
{
	const struct config *c = s->o->config;
	const struct gpt2_config *m = &c->model;
	const uint64_t size = s->zero->model->part.size;
	const uint64_t rows = (m->vocab_size + size - 1) / size * size;

	ptsave_set(pt, args, "num_layers", m->n_layer);
	ptsave_set(pt, args, "encoder_num_layers", m->n_layer);
	ptsave_set(pt, args, "hidden_size", m->n_embd);
	ptsave_set(pt, args, "ffn_hidden_size", m->n_embd * UINT64_C(4));
	ptsave_set(pt, args, "num_attention_heads", m->n_head);
	ptsave_set(pt, args, "num_key_value_heads", m->n_head);
	ptsave_set(pt, args, "kv_channels", m->n_embd / m->n_head);
	ptsave_set(pt, args, "max_position_embeddings", m->n_positions);
	ptsave_set(pt, args, "seq_length", c->seq_length);
	ptsave_set(pt, args, "make_vocab_size_divisible_by", 1u);
	ptsave_set(pt, args, "padded_vocab_size", rows);
	ptsave_set(pt, args, "add_position_embedding", (bool)true);
	ptsave_set(pt, args, "use_rotary_position_embeddings", (bool)false);
	ptsave_set(pt, args, "untie_embeddings_and_output_weights", (bool)false);
	ptsave_set(pt, args, "add_bias_linear", (bool)true);
	ptsave_set(pt, args, "apply_layernorm_1p", (bool)false);
	ptsave_set(pt, args, "swiglu", (bool)false);
	/* The approximation by tanh, as Hugging Face's gelu_new. */
	ptsave_set(pt, args, "openai_gelu", (bool)true);
	/* Its presence tells readers the order of query_key_value's rows. */
	if (s->form->naming.qkv == NAMING_QKV_THIRDS)
		ptsave_set(pt, args, "ds_sequence_parallel_fpdt", (bool)false);
	ptsave_set(pt, args, "normalization", "layernorm");
	ptsave_set(pt, args, "tokenizer_type", "GPT2BPETokenizer");
}

static void add_training(const struct save *s, struct ptsave *pt, struct value *args)
{
	const struct config *c = s->o->config;
	const struct optimizer_config *o = &s->zero->optimizer;
	const double dropout = (double)c->model.dropout;

	ptsave_set(pt, args, "rotary_percent", 1.0); /* without effect */
	ptsave_set(pt, args, "layernorm_epsilon", (double)c->model.layer_norm_epsilon);
	ptsave_set(pt, args, "attention_dropout", dropout);
	ptsave_set(pt, args, "hidden_dropout", dropout);
	ptsave_set(pt, args, "weight_decay", o->weight_decay);
	ptsave_set(pt, args, "start_weight_decay", o->weight_decay);
	ptsave_set(pt, args, "end_weight_decay", o->weight_decay);
	ptsave_set(pt, args, "clip_grad", c->gradient_clipping);
	ptsave_set(pt, args, "adam_beta1", o->beta1);
	ptsave_set(pt, args, "adam_beta2", o->beta2);
	ptsave_set(pt, args, "adam_eps", o->eps);
	ptsave_set(pt, args, "lr", o->lr);
	ptsave_set(pt, args, "min_lr", least_lr(c));
	ptsave_set(pt, args, "lr_decay_style", decay_style(c));
	ptsave_set(pt, args, "weight_decay_incr_style", "constant");
	ptsave_set(pt, args, "optimizer", "adam");
}

static void add_run(const struct save *s, struct ptsave *pt, struct value *args)
{
	const struct config *c = s->o->config;
	const bool pipe = s->form->naming.family != NAMING_MEGATRON_MODEL;

	ptsave_set(pt, args, "micro_batch_size", c->micro_batch);
	ptsave_set(pt, args, "global_batch_size", c->batch);
	ptsave_set(pt, args, "train_iters", c->steps);
	ptsave_set(pt, args, "seed", c->seed);
	ptsave_set(pt, args, "zero_stage", c->zero_stage);
	ptsave_set(pt, args, "rank", s->zero->world->rank);
	ptsave_set(pt, args, "world_size", s->zero->world->size);
	ptsave_set(pt, args, "data_parallel_size", c->data_parallel);
	ptsave_set(pt, args, "tensor_model_parallel_size", c->tensor_parallel);
	ptsave_set(pt, args, "pipeline_model_parallel_size", c->pipeline_parallel);
	ptsave_set(pt, args, "ds_sequence_parallel_size", c->sequence_parallel);
	ptsave_set(pt, args, "iteration", s->o->step);
	ptsave_set(pt, args, "consumed_train_samples", samples(s, s->o->step));
	ptsave_set(pt, args, "consumed_valid_samples", 0u);
	ptsave_set(pt, args, "consumed_train_tokens", tokens(s, s->o->step));
	ptsave_set(pt, args, "fp16", (bool)(c->dtype == DTYPE_F16));
	ptsave_set(pt, args, "bf16", (bool)(c->dtype == DTYPE_BF16));
	ptsave_set(pt, args, "sequence_parallel", c->cut_residual);
	ptsave_set(pt, args, "data_parallel_random_init", (bool)false);
	ptsave_set(pt, args, "no_pipeline_parallel", (bool)!pipe);
	ptsave_set(pt, args, "deepspeed", (bool)true);
}

void save_megatron_state(const struct save *s, struct ptsave *pt, struct value *root)
{
	struct value *args = ptsave_dict(pt);

	add_model(s, pt, args);
	add_training(s, pt, args);
	add_run(s, pt, args);
	ptsave_set(pt, root, "args", ptsave_object(pt, "argparse", "Namespace", args));
	ptsave_set(pt, root, "checkpoint_version", CHECKPOINT_VERSION);
	ptsave_set(pt, root, "iteration", s->o->step);
	ptsave_set(pt, root, "tokens", tokens(s, s->o->step));
	ptsave_set(pt, root, "rng_state", save_megatron_rng(s, pt));
}
