/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_STAGE0_FILE_H
#define UCTRAIN_LOAD_STAGE0_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/arena.h"
#include "ckpt/format/ptfile.h"
#include "gpu/model/naming.h"

struct errmsg;
struct gpt2;
struct value;

/* A parameter in the files of one part of a model. */
struct stage0_param {
	const char *name;
	const struct value *weights; /* NULL: the optimizer has masters */
	const struct ptfile *in;     /* the file of the weights */
};

/*
 * One part of a model without ZeRO: its model states, in which the optimizer is, and,
 * of Megatron's pipeline, the weights of layers, a file each.
 */
struct stage0_file {
	struct uckpt *u;
	const char *path;
	bool opened;
	struct ptfile pt;
	const struct value *optimizer;
	struct stage0_param *params; /* by their numbers in the optimizer */
	size_t n;
	struct stage0_layer *layers; /* by number */
	size_t nlayers;
	struct arena arena; /* paths, and names of a nested module */
};

/* What a part in Megatron's names consists of: its optimizer has numbers, not names. */
struct stage0_part {
	const char *dir;
	enum naming_family family;
	const struct gpt2 *model;            /* of all parts */
	const struct naming_tensor *tensors; /* of its parameters */
	unsigned rank;                       /* tensor-parallel */
	bool first, last;                    /* stage of a pipeline */
	unsigned first_block, end_block;
};

/* Open the model states of part `number`; params are missing. */
int stage0_file_open(struct uckpt *u, struct stage0_file **out, const char *dir,
		     unsigned number, struct errmsg *err);
void stage0_file_close(struct stage0_file *f);

/* Find the parameters of a part in Hugging Face's names: those of its module. */
int stage0_file_read_names(struct stage0_file *f, struct errmsg *err);

/* How many blocks a stage of Megatron's has follows from the sizes of its parameter
 * groups.  -EBADMSG. */
int stage0_file_blocks(const struct stage0_file *f, bool first, bool last,
		       unsigned *blocks, struct errmsg *err);

/* Find the parameters of a part in Megatron's names, as many as its blocks have.  The
 * names stay those of `p`. */
int stage0_file_number(struct stage0_file *f, const struct stage0_part *p,
		       struct errmsg *err);

/* A parameter's masters (`state` is NULL) or the named state, and the file it is in;
 * NULL if the part has none. */
const struct value *stage0_file_find(const struct stage0_file *f,
				     const char *param, const char *state,
				     const struct ptfile **in);

#endif
