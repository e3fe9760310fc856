/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CATALOGUE_H
#define UCKPT_CATALOGUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/model/experts.h"
#include "ckpt/model/merge_rules.h"
#include "ckpt/tensor/tensor.h"

struct ckdir;
struct ckfile;
struct errmsg;

/* A tensor of the `module` dict in the model-states file, or of an expert's
 * file. */
struct module_tensor {
	uint32_t file; /* which one: ckdir.model, then ckdir.expert */
	enum dtype dtype;
	bool requires_grad;
	unsigned ndim;
	const uint64_t *shape;
	const uint64_t *stride;
	uint64_t numel;
	uint64_t storage;	 /* file offset of the storage's element 0 */
	uint64_t storage_offset; /* elements */
	uint64_t storage_numel;
};

/*
 * A parameter as one model-parallel rank has it: whole without tensor
 * parallelism, else this rank's slice.
 */
struct slice {
	const char *name;
	unsigned ndim;
	const uint64_t *shape;
	uint64_t numel;
	unsigned mp; /* the rank */
	/* What the optimizer owns lies in a flat group ... */
	uint32_t group;
	uint32_t index;	 /* in the group's order */
	uint32_t listed; /* in param_shapes', which has empty ones, too */
	/* An expert's: of this layer, as each expert-parallel rank has it; the
	 * name is that on the rank, see experts.h. */
	const struct expert_layer *layer;
	unsigned ep;	  /* of this expert-parallel rank */
	unsigned expert;  /* native: the local one */
	const char *rest; /* of the name */
	/* ... others (frozen, tied aliases, buffers) only in the module. */
	const struct module_tensor *module;
};

/* Slices in the order of a flat group (ZeRO-3: a sub-group). */
struct slice_group {
	const struct slice **slices;
	size_t n;
	size_t listed; /* in param_shapes */
	unsigned degree; /* expert-parallel ranks that have a group of their
			  * own each; 1: none of experts */
};

/*
 * What the model-states file of one rank tells: every parameter's name, shape
 * and place in the order of flat groups.  No optimizer shard has been opened.
 * Immutable after catalogue_load.
 */
struct catalogue {
	struct arena arena;
	unsigned mp;
	struct slice *slices; /* sorted by name */
	size_t nslices;
	size_t slices_cap;
	struct slice_group *groups;
	size_t ngroups;
	struct experts experts;
	bool zero3;
	bool round_robin; /* ds_config says round_robin_gradients */
	bool has_uc_info;
	const char *ds_version; /* "" if unknown */
	int64_t stage;		/* by ds_config; -1 if it does not say */
	int64_t global_steps;	/* -1 if it does not say */
	int64_t dp_world_size;	/* -1 if it does not say */
	int64_t mp_world_size;	/* -1 if it does not say */
	enum dtype module_dtype; /* the model's own; DTYPE_OTHER if unknown */
	struct merge_rules *rules; /* of its universal_checkpoint_info */
	int64_t tp_degree, pp_degree; /* -1 if it does not say */
	const char **warnings; /* what was left out, and why */
	size_t nwarnings;
	size_t warnings_cap;
};

/*
 * Read the catalogue of model-parallel rank `mp` of a scanned directory.
 * Messages name the file.
 */
int catalogue_load(struct catalogue *c, const struct ckdir *dir, unsigned mp,
		   struct errmsg *err);
void catalogue_done(struct catalogue *c);

/* Does an expert's file (one of ckdir.expert) hold what the catalogue of its
 * directory expects?  -EBADMSG if not, and errors of ptfile_open. */
int catalogue_check_expert(const struct catalogue *c, const struct ckfile *f,
			   struct errmsg *err);

/* The slice of the parameter called `name`, or NULL. */
const struct slice *catalogue_find(const struct catalogue *c,
				   const char *name);

#endif
