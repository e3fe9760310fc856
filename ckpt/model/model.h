/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_MODEL_H
#define UCKPT_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/model/rank_params.h"
#include "ckpt/model/merge_rules.h"

struct ckdir;
struct errmsg;
struct geometry;

/* A parameter of the whole model. */
struct param {
	const char *name;
	unsigned ndim; /* the shape that its universal files show */
	const uint64_t *shape;
	uint64_t numel;
	struct merge merge;
	size_t holders; /* ranks that have the same piece, at most */
	bool computed; /* of its elements some are: a mean, or scaled */
	/* What the optimizer owns: the slice of each tensor-parallel rank of
	 * its pipeline stage, NULL where a rank has none; of experts that are
	 * fused, of each expert-parallel rank ... */
	const struct slice **slices;
	unsigned nslices;
	const struct slice *first; /* of them that is not NULL */
	/* ... others only in a module, or an expert's file. */
	const struct module_tensor *module;
};

/*
 * The catalogues of all model-parallel ranks, put together: model-parallel
 * rank mp is tensor-parallel rank mp % tp of pipeline stage mp / tp.
 * Parameters of native experts are called as in the whole model.
 * Immutable after model_load.
 */
struct model {
	struct arena arena;
	struct catalogue *cats; /* of each model-parallel rank */
	unsigned tp, pp;
	struct param *params; /* sorted by name */
	size_t nparams;
	const char **unused; /* patterns that match no parameter */
	size_t nunused;
	const struct param *scaled; /* one of scaled pieces, or NULL */
};

/* Parameters that a model may have: those of experts are multiplied by the
 * ranks that share them. */
#define MODEL_PARAMS_MAX (1u << 24)

/* Read all catalogues of a scanned directory.  -ENOTSUP for layouts that
 * cannot be served, with the parameter's name. */
int model_load(struct model *m, const struct ckdir *dir, struct errmsg *err);

/* The same of catalogues that are there, one for each model-parallel rank.  They
 * are taken over, also if it fails. */
int model_build(struct model *m, const struct ckdir *dir,
		struct catalogue *cats, struct errmsg *err);
void model_done(struct model *m);

/* The parameter called `name`, or NULL. */
const struct param *model_find(const struct model *m, const char *name);

/*
 * How the parameter is made of its slices.  It is worked out for its shape when
 * the model is loaded, which shows that rule and slices agree, and again when
 * one of its files is opened: some microseconds, where keeping it would take
 * 600 bytes and more of each of a hundred thousand parameters.
 */
int model_geometry(const struct param *p, struct geometry *g,
		   struct errmsg *err);

/* Do files hold bare 1-D tensors?  So ZeRO-3's without tensor parallelism. */
bool model_is_flat(const struct model *m);

#endif
