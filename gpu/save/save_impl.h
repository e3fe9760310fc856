/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SAVE_IMPL_H
#define UCTRAIN_SAVE_IMPL_H

#include "ckpt/base/arena.h"
#include "ckpt/format/names.h"
#include "ckpt/table/partition.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/config/config.h"
#include "gpu/model/gpt2.h"
#include "gpu/save/ptsave.h"
#include "gpu/save/saver.h"
#include "gpu/zero/optimizer.h"
#include "gpu/zero/zero.h"

/* Shared by the files of gpu/save. */

#define SAVE_TAG "global_step"

/* A parameter that is in a stage's files but unused. */
#define FORM_DEAD SIZE_MAX

struct order_tensor {
	struct naming_tensor t;
	size_t param;   /* of the model, or FORM_DEAD */
	float *weights; /* the masters, on the host; NULL if this rank does not write the weights,
			 * or if they are in the device's memory */
};

/* A parameter group: tensors end to end, partitioned over data-parallel ranks. */
struct order_group {
	size_t n;
	size_t *tensors; /* numbers of its tensors */
	struct partition partition;
	/* This rank's part, with padding. */
	float *master, *exp_avg, *exp_avg_sq;
};

/*
 * A rank's training state in the files' form.  Hugging Face's form equals the device's memory, and
 * borrows it.  Megatron's form is a copy on the host, which takes as much memory as the state.
 */
struct state_order {
	struct naming naming;
	const struct zero *zero;
	struct backend *from; /* owner of the groups' memory; NULL: host memory, owned by the
			       * form */
	struct arena memory;
	struct order_tensor *tensors; /* in the order of modules */
	size_t ntensors;
	struct order_group *groups;
	unsigned ngroups;
};

/* Collective: all ranks get the same result. -ENOMEM. */
int state_order_init(struct state_order *f, const struct zero *z, const struct naming *n, struct errmsg *err);
void state_order_done(struct state_order *f);

/* A file before it is written. */
struct save_file {
	struct ptsave pt;
	struct value *root;
	char name[NAME_MAX + 1]; /* "": this rank does not write the file */
};

/* The context for building a file. */
struct save {
	const struct zero *zero;
	const struct state_order *order;
	const struct save_options *o;
	struct ptsave *pt;
	struct arena *a; /* arena of its objects */
};

/* The number of this rank's part of the model, as in file names: stage * tensor-parallel ranks +
 * tensor-parallel rank. */
static inline unsigned save_part(const struct save *s)
{
	const struct gpt2_part *p = &s->zero->model->part;

	return p->stage * p->size + p->rank;
}

/* Are the files those of Megatron-DeepSpeed? */
static inline bool save_as_megatron(const struct save *s)
{
	return s->order->naming.family != NAMING_HF;
}

/* Build this rank's model states, if it has any. */
void save_model(const struct save *s, struct save_file *f);

/* Build this rank's optimizer shard (stages 1 to 3). */
void save_shard(const struct save *s, struct save_file *f);

/* Build the weights of a unit of Megatron's pipeline, if this rank writes them. */
void save_layer(const struct save *s, unsigned unit, struct save_file *f);

/* Build a checkpoint's `ds_config` dict: the DeepSpeed configuration file, if any, updated with
 * the values in effect. */
struct value *save_dsconfig(struct arena *a, const struct config *c);

/* Build the universal_checkpoint_info of the model states. */
struct value *save_universal_info(const struct save *s);

/* Return the empty tensor that replaces a parameter's weights in ZeRO-3. */
struct value *save_nothing(const struct save *s);

/* The state dict of Megatron's model, which is nested. */
struct value *save_megatron_module(const struct save *s);

/* The state of Megatron's scheduler. */
struct value *save_megatron_schedule(const struct save *s);

/* Add the state that Megatron's training script saves, except universal_checkpoint_info. */
void save_megatron_state(const struct save *s, struct value *root);

/* The rng_state of Megatron's script: generators of Python, numpy and torch, seeded by the run's
 * seed, the step and the part of the model. */
struct value *save_megatron_rng(const struct save *s);

/* Build the value of `optimizer` in stage 0's model states. */
struct value *save_whole_optimizer(const struct save *s);

/* Write a model's config.json into a checkpoint's directory. */
int save_config(const char *dir, const struct gpt2_config *m, struct errmsg *err);

/* Remove checkpoints of steps up to `step`, which was just saved, except the newest `k`. 0 keeps
 * all. */
int save_keep_last(const char *dir, unsigned k, uint64_t step, struct errmsg *err);

/* Remove temporary directories of killed runs from `dir`. */
void save_remove_stale(const char *dir);

#endif
