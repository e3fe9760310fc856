/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_STAGE0_H
#define UCTRAIN_LOAD_STAGE0_H

#include <stddef.h>

#include "ckpt/base/arena.h"
#include "ckpt/format/ptfile.h"
#include "gpu/load/load_impl.h"
#include "gpu/model/naming.h"

/* A parameter in the files of one part of a model. */
struct stage0_param {
	size_t id; /* in the optimizer, from 1; 0: the part does not have it */
	const struct value *weights; /* NULL: the optimizer has masters */
	const struct ptfile *in;     /* the file of the weights */
};

/*
 * One part of a model without ZeRO: its model states, in which the optimizer is, and,
 * of Megatron's pipeline, the weights of layers, a file each.
 */
struct stage0_file {
	unsigned rank, stage;            /* tensor-parallel, of a pipeline */
	unsigned first_block, end_block; /* of Megatron's part */
	struct ptfile pt;                /* has no root unless it is open */
	const struct value *optimizer;
	struct stage0_param *params; /* by their number in the model */
	struct ptfile *layers;       /* by number; open when first needed */
	size_t nlayers;
	struct arena arena; /* paths, and names of a nested module */
};

struct stage0_source {
	struct load_source s;
	unsigned tensor, stages;    /* ranks that shared the model */
	struct stage0_file **files; /* [stage * tensor + rank] */
	size_t nfiles;
	struct gpt2 saved; /* as a tensor-parallel rank has it, of all stages */
};

/* Open the model states of part `number` as w->files[number]; params are missing. */
int stage0_file_open(struct stage0_source *w, size_t number, struct errmsg *err);
void stage0_file_close(struct stage0_file *f);

/* How many blocks a stage of Megatron's has follows from the sizes of its parameter
 * groups.  -EINVAL. */
int stage0_file_blocks(const struct stage0_source *w,
		       const struct stage0_file *f, unsigned *blocks,
		       struct errmsg *err);

/* Find the parameters: of a part in Hugging Face's names those of its module, in
 * Megatron's, whose optimizer has numbers, as many as its blocks have.  -EINVAL if the
 * optimizer has one that is not the model's. */
int stage0_file_params(const struct stage0_source *w, struct stage0_file *f,
		       struct errmsg *err);

/* The masters of a parameter (`state` is NULL) or the named state, and the file it is
 * in; NULL if the part has none. */
const struct value *stage0_file_find(const struct stage0_file *f, size_t number,
				     const char *state,
				     const struct ptfile **in);

#endif
