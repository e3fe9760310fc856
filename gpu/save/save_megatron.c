/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Megatron-DeepSpeed's files have beside the optimizer: the weights of a
 * pipeline's layers, or of its model; the state of its scheduler, which counts
 * samples; and what its script saves (megatron/checkpointing.py), of which the
 * loader compares some with its own.  Forms and order are those of files that it
 * wrote.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pickle/value.h"
#include "gpu/save/save_impl.h"

/* Rows of query_key_value are not mended by the loader. */
#define CHECKPOINT_VERSION 3.0

/* A tensor of the weights that this rank writes, in a storage of its own. */
static struct value *weights(const struct save *s, struct ptsave *pt,
			     const struct form_tensor *x)
{
	const enum dtype dtype = s->zero->backend->dtype;
	const size_t storage =
		ptsave_storage(pt, &(struct ptsave_storage){
					   .dtype = dtype,
					   .numel = x->t.numel,
					   .p = x->weights,
					   .wide = dtype != DTYPE_F32,
				   });

	assert(x->weights);
	return ptsave_tensor(pt, storage, 0, x->t.shape, x->t.ndim, false);
}

/* The first tensor of a unit that this rank has in its files. */
static const struct form_tensor *first_of_unit(const struct save *s,
					       unsigned unit)
{
	const struct gpt2_unit *u = &s->zero->model->units[unit];
	const struct form *f = s->form;
	size_t i = 0;

	while (u->n && i < f->ntensors && f->tensors[i].param != u->first)
		i++;
	return u->n && f->tensors[i].weights ? &f->tensors[i] : NULL;
}

int save_layer(const struct save *s, unsigned unit, struct save_file *f,
	       struct errmsg *err)
{
	const struct gpt2_unit *u = &s->zero->model->units[unit];
	const struct form_tensor *first = first_of_unit(s, unit);
	int rc;

	if (!first)
		return 0;
	if (asprintf(&f->path, "%s/layer_%02u-model_%02u-model_states.pt",
		     s->dir, first->t.layer, s->zero->model->part.rank) < 0) {
		f->path = NULL;
		return errmsg_nomem(err, NULL);
	}
	rc = ptsave_init(&f->pt, err);
	if (rc)
		return rc;
	f->root = ptsave_ordered_dict(&f->pt);
	for (size_t i = 0; i < u->n; i++)
		ptsave_set(&f->pt, f->root, first[i].t.last,
			   weights(s, &f->pt, &first[i]));
	return 0;
}

/* A tensor's name behind `prefix`; NULL if it begins otherwise. */
static const char *behind(const struct form_tensor *x, const char *prefix)
{
	const size_t n = strlen(prefix);

	return strncmp(x->t.name, prefix, n) == 0 ? x->t.name + n : NULL;
}

/* The embeddings are modules, each with its one parameter; the encoder is one with
 * all others. */
struct value *save_megatron_module(const struct save *s, struct ptsave *pt)
{
	static const char *const embeddings[] = { "word_embeddings",
						  "position_embeddings" };
	struct value *root = ptsave_dict(pt), *language = ptsave_dict(pt);
	struct value *embedding = ptsave_dict(pt);
	struct value *encoder = ptsave_ordered_dict(pt);

	for (size_t i = 0; i < s->form->ntensors; i++) {
		const struct form_tensor *x = &s->form->tensors[i];
		const char *name = behind(x, "language_model.encoder.");
		struct value *v = s->zero->stage == 3 ? save_nothing(s, pt)
						      : weights(s, pt, x);

		if (name) {
			ptsave_set(pt, encoder, name, v);
		} else {
			struct value *one = ptsave_ordered_dict(pt);

			assert(x->param < GPT2_EMBED_PARAMS);
			ptsave_set(pt, one, "weight", v);
			ptsave_set(pt, embedding, embeddings[x->param], one);
		}
	}
	ptsave_set(pt, language, "embedding", embedding);
	ptsave_set(pt, language, "encoder", encoder);
	ptsave_set(pt, root, "language_model", language);
	return root;
}

static const char *decay_style(const struct config *c)
{
	switch (c->schedule.kind) {
	case SCHEDULE_COSINE:
		return "cosine";
	case SCHEDULE_LINEAR:
		return "linear";
	default:
		return "constant";
	}
}

static double least_lr(const struct config *c)
{
	return c->schedule.kind == SCHEDULE_LINEAR ? c->schedule.start_lr
						   : c->schedule.min_lr;
}

static int64_t samples(const struct save *s, uint64_t steps)
{
	return (int64_t)(steps * s->o->config->batch);
}

static int64_t tokens(const struct save *s, uint64_t steps)
{
	return samples(s, steps) * s->o->config->seq_length;
}

struct value *save_megatron_schedule(const struct save *s, struct ptsave *pt)
{
	const struct config *c = s->o->config;
	const struct optimizer_config *o = &s->zero->optimizer;
	const uint64_t before = s->o->step ? s->o->step - 1 : 0;
	struct value *dict = ptsave_dict(pt);

#define SET(key, value) ptsave_set(pt, dict, key, value)
	SET("max_lr", ptsave_float(pt, o->lr));
	SET("lr_warmup_steps", ptsave_int(pt, samples(s, c->schedule.warmup)));
	SET("lr_warmup_tokens", ptsave_none(pt));
	SET("num_steps", ptsave_int(pt, samples(s, s->o->step)));
	SET("num_tokens", ptsave_int(pt, tokens(s, before)));
	SET("lr_decay_style", ptsave_str(pt, decay_style(c)));
	SET("lr_decay_steps", ptsave_int(pt, samples(s, c->schedule.total)));
	SET("lr_decay_tokens", ptsave_none(pt));
	SET("min_lr", ptsave_float(pt, least_lr(c)));
	SET("start_wd", ptsave_float(pt, o->weight_decay));
	SET("end_wd", ptsave_float(pt, o->weight_decay));
	SET("wd_incr_style", ptsave_str(pt, "constant"));
	SET("wd_incr_steps", ptsave_int(pt, samples(s, c->steps)));
#undef SET
	return dict;
}

struct count_arg {
	const char *key;
	uint64_t value;
};

struct switch_arg {
	const char *key;
	bool value;
};

static void set_counts(struct ptsave *pt, struct value *args,
		       const struct count_arg *counts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ptsave_set(pt, args, counts[i].key,
			   ptsave_int(pt, (int64_t)counts[i].value));
}

static void set_switches(struct ptsave *pt, struct value *args,
			 const struct switch_arg *switches, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ptsave_set(pt, args, switches[i].key,
			   ptsave_bool(pt, switches[i].value));
}

static void add_model(const struct save *s, struct ptsave *pt,
		      struct value *args)
{
	const struct config *c = s->o->config;
	const struct gpt2_config *m = &c->model;
	const uint64_t size = s->zero->model->part.size;
	const uint64_t rows = (m->vocab_size + size - 1) / size * size;
	const struct count_arg counts[] = {
		{ "num_layers", m->n_layer },
		{ "encoder_num_layers", m->n_layer },
		{ "hidden_size", m->n_embd },
		{ "ffn_hidden_size", (uint64_t)m->n_embd * 4 },
		{ "num_attention_heads", m->n_head },
		{ "num_key_value_heads", m->n_head },
		{ "kv_channels", m->n_embd / m->n_head },
		{ "max_position_embeddings", m->n_positions },
		{ "seq_length", c->seq_length },
		{ "make_vocab_size_divisible_by", 1 },
		{ "padded_vocab_size", rows },
	};
	const struct switch_arg switches[] = {
		{ "add_position_embedding", true },
		{ "use_rotary_position_embeddings", false },
		{ "untie_embeddings_and_output_weights", false },
		{ "add_bias_linear", true },
		{ "apply_layernorm_1p", false },
		{ "swiglu", false },
		/* The approximation by tanh, as Hugging Face's gelu_new. */
		{ "openai_gelu", true },
	};

	set_counts(pt, args, counts, COUNT(counts));
	set_switches(pt, args, switches, COUNT(switches));
	/* Its presence tells readers the order of query_key_value's rows. */
	if (s->form->naming.qkv == NAMING_QKV_THIRDS)
		ptsave_set(pt, args, "ds_sequence_parallel_fpdt",
			   ptsave_bool(pt, false));
	ptsave_set(pt, args, "normalization", ptsave_str(pt, "layernorm"));
	ptsave_set(pt, args, "tokenizer_type",
		   ptsave_str(pt, "GPT2BPETokenizer"));
}

static void add_training(const struct save *s, struct ptsave *pt,
			 struct value *args)
{
	const struct config *c = s->o->config;
	const struct optimizer_config *o = &s->zero->optimizer;
	const struct {
		const char *key;
		double value;
	} numbers[] = {
		{ "rotary_percent", 1 }, /* without effect */
		{ "layernorm_epsilon", (double)c->model.layer_norm_epsilon },
		{ "attention_dropout", (double)c->model.dropout },
		{ "hidden_dropout", (double)c->model.dropout },
		{ "weight_decay", o->weight_decay },
		{ "start_weight_decay", o->weight_decay },
		{ "end_weight_decay", o->weight_decay },
		{ "clip_grad", c->gradient_clipping },
		{ "adam_beta1", o->beta1 },
		{ "adam_beta2", o->beta2 },
		{ "adam_eps", o->eps },
		{ "lr", o->lr },
		{ "min_lr", least_lr(c) },
	};

	for (size_t i = 0; i < COUNT(numbers); i++)
		ptsave_set(pt, args, numbers[i].key,
			   ptsave_float(pt, numbers[i].value));
	ptsave_set(pt, args, "lr_decay_style", ptsave_str(pt, decay_style(c)));
	ptsave_set(pt, args, "weight_decay_incr_style",
		   ptsave_str(pt, "constant"));
	ptsave_set(pt, args, "optimizer", ptsave_str(pt, "adam"));
}

static void add_run(const struct save *s, struct ptsave *pt, struct value *args)
{
	const struct config *c = s->o->config;
	const struct count_arg counts[] = {
		{ "micro_batch_size", c->micro_batch },
		{ "global_batch_size", c->batch },
		{ "train_iters", c->steps },
		{ "seed", c->seed },
		{ "zero_stage", c->zero_stage },
		{ "rank", s->zero->world->rank },
		{ "world_size", s->zero->world->size },
		{ "data_parallel_size", c->data_parallel },
		{ "tensor_model_parallel_size", c->tensor_parallel },
		{ "pipeline_model_parallel_size", c->pipeline_parallel },
		{ "ds_sequence_parallel_size", c->sequence_parallel },
		{ "iteration", s->o->step },
		{ "consumed_train_samples", (uint64_t)samples(s, s->o->step) },
		{ "consumed_valid_samples", 0 },
		{ "consumed_train_tokens", (uint64_t)tokens(s, s->o->step) },
	};
	const struct switch_arg switches[] = {
		{ "fp16", c->dtype == DTYPE_F16 },
		{ "bf16", c->dtype == DTYPE_BF16 },
		{ "sequence_parallel", c->cut_residual },
		{ "data_parallel_random_init", false },
		{ "no_pipeline_parallel",
		  s->form->naming.family == NAMING_MEGATRON_MODEL },
		{ "deepspeed", true },
	};

	set_counts(pt, args, counts, COUNT(counts));
	set_switches(pt, args, switches, COUNT(switches));
}

void save_megatron_state(const struct save *s, struct ptsave *pt,
			 struct value *root)
{
	struct value *args = ptsave_dict(pt);

	add_model(s, pt, args);
	add_training(s, pt, args);
	add_run(s, pt, args);
#define SET(key, value) ptsave_set(pt, root, key, value)
	SET("args", ptsave_object(pt, "argparse", "Namespace", args));
	SET("checkpoint_version", ptsave_float(pt, CHECKPOINT_VERSION));
	SET("iteration", ptsave_int(pt, (int64_t)s->o->step));
	SET("tokens", ptsave_int(pt, tokens(s, s->o->step)));
	SET("rng_state", save_megatron_rng(s, pt));
#undef SET
}
