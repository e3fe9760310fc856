/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_GPT2_H
#define UCTRAIN_GPT2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

/*
 * GPT-2 as Hugging Face's GPT2LMHeadModel: its sizes, and its parameters by name, in the order of
 * torch's model.parameters(), which is also that of DeepSpeed's flat group.  The head is tied to
 * the token embedding and is not a separate parameter.
 */
struct gpt2_config {
	unsigned n_layer;
	unsigned n_head;
	unsigned n_embd;
	unsigned vocab_size;
	unsigned n_positions;
	float layer_norm_epsilon;
	float dropout; /* of embeddings, attention weights and residuals */
};

#define GPT2_NAME_MAX 48

/*
 * A parameter as a rank holds it.  Tensor-parallel ranks cut some parameters, as the parameter's
 * operation requires: a rank holds run number `part` of every `parts` runs of `run` elements of the
 * whole parameter.
 */
struct gpt2_param {
	char name[GPT2_NAME_MAX];
	const char *megatron; /* name within Megatron's unit */
	unsigned ndim;
	uint64_t shape[2], numel; /* of this rank's part */
	uint64_t whole_shape[2], whole_numel;
	uint64_t run; /* all elements if the parameter is not cut */
	unsigned parts, part;
	size_t number;  /* among all parameters of the model */
	bool first;     /* no earlier rank, except data-parallel ones, has the same elements */
	uint64_t start; /* elements of the unit that precede this parameter */
	unsigned unit;
};

/*
 * Parameters that are needed together and, in ZeRO-3, are gathered together: the embeddings, each
 * block, the last norm.  Units are in the order of parameters.
 */
struct gpt2_unit {
	size_t first, n; /* parameters */
	uint64_t numel;
};

/*
 * The quantity that pipeline stages balance; each stage has at least one block.  It is parameters,
 * weighted by their time in a step; layers, including the embeddings, the last norm and the head;
 * or blocks.  The names are from DeepSpeed's partition_method, which gives all parameters the same
 * weight: with a large vocabulary its last stage takes twice the time of the first.
 */
enum gpt2_partition {
	GPT2_PARTITION_PARAMETERS,
	GPT2_PARTITION_UNIFORM,
	GPT2_PARTITION_BLOCKS,
};

/* A rank of a split model: tensor-parallel rank `rank` of `size`, in a stage of a pipeline. */
struct gpt2_split {
	unsigned rank, size;
	unsigned stage, stages;
	enum gpt2_partition partition;
};

/* The part that such a rank computes. */
struct gpt2_part {
	unsigned rank, size;
	unsigned stage, stages;
	unsigned first_layer, end_layer;
	unsigned n_head, width; /* its heads, and their total width */
	/* This rank's tokens.  The embedding has the same number of rows on every rank: the last
	 * rank's may include padding, which stays zero. */
	unsigned vocab_first, vocab_size;
};

struct gpt2 {
	struct gpt2_config config;
	struct gpt2_part part;
	struct gpt2_param *params;
	size_t nparams;
	struct gpt2_unit *units; /* n_layer + 2 units */
	size_t nunits;
	uint64_t numel;       /* of this rank's parameters */
	size_t nwhole;        /* number of parameters of all ranks */
	uint64_t whole_numel; /* elements of these */
};

#define GPT2_UNIT_EMBED 0u
#define GPT2_UNIT_BLOCK(layer) (1u + (layer))

/* A unit's parameters, by position. */
enum gpt2_embed { GPT2_WTE, GPT2_WPE, GPT2_EMBED_PARAMS };
enum gpt2_block {
	GPT2_LN_1_WEIGHT,
	GPT2_LN_1_BIAS,
	GPT2_C_ATTN_WEIGHT, /* Conv1D: [in, out], like the other weights */
	GPT2_C_ATTN_BIAS,
	GPT2_ATTN_PROJ_WEIGHT,
	GPT2_ATTN_PROJ_BIAS,
	GPT2_LN_2_WEIGHT,
	GPT2_LN_2_BIAS,
	GPT2_C_FC_WEIGHT,
	GPT2_C_FC_BIAS,
	GPT2_MLP_PROJ_WEIGHT,
	GPT2_MLP_PROJ_BIAS,
	GPT2_BLOCK_PARAMS,
};
enum gpt2_last { GPT2_LN_F_WEIGHT, GPT2_LN_F_BIAS, GPT2_LAST_PARAMS };

/* Fill in the sizes of a published model ("gpt2", "gpt2-medium", ...). -ENOENT with a list of
 * names if it is unknown. */
int gpt2_preset(const char *name, struct gpt2_config *c, struct errmsg *err);

/* Build the parameter table. -EINVAL with the reason if the sizes are impossible; -ENOMEM. */
int gpt2_init(struct gpt2 *m, const struct gpt2_config *c, struct errmsg *err);

/* Build the part of a rank; units of other stages are empty.  The last stage also has the token
 * embedding, for the head.  -EINVAL also if the number of ranks does not divide the model. */
int gpt2_init_part(struct gpt2 *m, const struct gpt2_config *c, const struct gpt2_split *s,
		   struct errmsg *err);
void gpt2_done(struct gpt2 *m);

/*
 * Map elements of a rank's part to the whole parameter: *whole is the index of element `first`
 * there.  Returns how many of the `n` elements from there on are consecutive in the whole
 * parameter, too: at least one.  Padding has indices beyond the end.
 */
uint64_t gpt2_whole_run(const struct gpt2_param *p, uint64_t first, uint64_t n, uint64_t *whole);

/* Floating-point operations per token of a row of `seq` tokens, forward and backward: 6 for each
 * parameter of the whole model, and 12 * blocks * width * seq for the GEMMs of attention, ignoring
 * the mask. */
double gpt2_flops_per_token(const struct gpt2 *m, size_t seq);

/*
 * Compute elements [first, first + n) of this rank's part of parameter i of a new model,
 * distributed as Hugging Face initialises GPT-2.  They depend only on the seed, the parameter and
 * the index in the whole parameter, so that any number of ranks gets the same model.  Padding is
 * zero.
 */
void init_weights(const struct gpt2 *m, size_t i, uint64_t seed, uint64_t first, size_t n,
		  float *out);

/* The index of the last unit, which follows all blocks. */
unsigned gpt2_unit_last(const struct gpt2 *m);

#endif
