/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RANK_TABLE_H
#define UCKPT_RANK_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/array.h"
#include "ckpt/format/tensor.h"

struct arena;
struct expert_layer;
struct param_states;

enum param_kind { PARAM_TRAINED, PARAM_FROZEN, PARAM_BUFFER, PARAM_ALIAS };

/*
 * A parameter of the optimizer on one model-parallel rank: the whole parameter without tensor
 * parallelism, else this rank's slice of it.
 */
struct slice {
	const char *name; /* must be first: array_by_text */
	unsigned ndim;
	const uint64_t *shape;
	uint64_t numel;
	unsigned mp; /* model-parallel rank */
	/* The place of the parameter in a flat group (ZeRO's partitions cut that group): */
	uint32_t group;
	uint32_t index;	 /* position in the group */
	/* The layer of an expert, or NULL.  `name` is then the name that the rank uses
	 * (experts.h). */
	const struct expert_layer *layer;
	unsigned ep;	  /* expert-parallel rank */
	unsigned expert;  /* native: local number */
	const char *rest; /* the name after the expert's number */
};

/* Further names of tensors. */
struct ties {
	struct tie {
		const char *name, *of;
	} *v;
	size_t n, cap;
};

/* Add a pair of names, which live as long as the arena.  False when that is exhausted. */
bool ties_add(struct ties *t, struct arena *a, const char *name, const char *of);

/* Slices in the order of param_shapes and of a flat group (ZeRO-3: a sub-group).  In stages 1
 * and 2 slices without elements are listed here although only the module has them. */
struct slice_group {
	const struct slice **slices;
	size_t n;
	unsigned degree; /* number of expert-parallel ranks, each with its own group; 1: one rank
	                  * has all experts, or there are none */
	unsigned lanes; /* see struct rank_stripe */
	/* Set by checkpoint_ops.states: */
	const struct param_states *states;
	bool replicated; /* each data-parallel rank keeps states of whole parameters (Muon) */
	bool data_first; /* experts: see struct rank_stripe */
	bool mapping_ignored; /* param_slice_mappings contradict param_shapes */
	const uint64_t *padding; /* after each parameter, by `index`; NULL: none */
};

/* A model-parallel rank's parameters of the optimizer. */
struct rank_table {
	const struct slice *slices; /* sorted by name */
	size_t nslices;
	const struct slice_group *groups;
	size_t ngroups;
	const char *refused; /* reason why the optimizer's states cannot be read; or NULL */
	bool lost;           /* the reason is missing files */
};

/* Return the slice of a rank that is called `name`, or NULL. */
static inline const struct slice *slice_find(const struct slice *v, size_t n, const char *name)
{
	return array_find(v, n, sizeof(*v), name);
}

/* Recorded facts about the run that saved a checkpoint. */
struct run_facts {
	const char *source; /* the program in words, if it was not DeepSpeed; or NULL */
	const char *ds_version; /* "" if unknown */
	int64_t stage; /* ZeRO stage from ds_config; -1 if not recorded */
	int64_t global_steps, skipped_steps; /* skipped because of an overflow; -1 if not
	                                      * recorded */
	enum dtype module_dtype; /* the model's own; DTYPE_OTHER if unknown */
	bool zero3;       /* files of stage 3 */
	bool bf16_names;  /* names of optimizer shards begin with bf16_ */
	bool is_pipeline; /* its layers have files of their own, and `module` is None */
	bool round_robin; /* ds_config says round_robin_gradients */
	bool has_uc_info; /* universal_checkpoint_info */
	bool has_frozen;  /* frozen parameters are in the model states */
	bool excludes_frozen; /* the run excluded frozen parameters, if it had any, from the
			       * checkpoint */
};

#endif
