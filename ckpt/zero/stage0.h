/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STAGE0_H
#define UCKPT_STAGE0_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/table/checkpoint.h"

struct errmsg;
struct errmsg_sink;
struct partitioning;
struct rank_params;
struct shard;
struct zero_dir;
struct value;

/* The place of a parameter's elements in a file. */
struct stage0_place {
	uint32_t file; /* number of the file, as in extents */
	enum dtype dtype;
	uint64_t at; /* bytes */
};

/* A group of the optimizer. */
struct stage0_group {
	struct stage0_owned {
		const char *name;
		const struct stored *weight;
		/* First the place of the master weight, then one place per flat state, in order. */
		struct stage0_place *places;
		/* For AutoEP's experts of a rank: the places of the master weight, one for each
		 * expert's file, in order; NULL: one place has the whole. */
		const struct stage0_place *pieces;
	} * params; /* in the optimizer's order */
	size_t nparams, cap;
	bool experts;
	struct param_state *states; /* without the master weights */
	size_t nstates;
	uint64_t number; /* a parameter's number in the optimizer; that parameter has all of the
	                  * states */
};

/* A model-parallel rank of a checkpoint that was saved without ZeRO.  Immutable. */
struct stage0_rank {
	struct arena arena;
	struct stage0_group *groups;
	size_t ngroups;
	struct ties ties; /* of tied parameters */
	enum dtype weights;  /* type of the first parameter's master */
	bool steps_differ;   /* within a group: the first parameter's step is used */
	const char *source;  /* the saving program, in words */
	const char *refused; /* reason why the optimizer is not read and there are no states; or
			      * NULL */
	bool lost;           /* the optimizer is not read because it is missing */
	bool bf16;           /* the run used bf16 */
	uint32_t file;       /* file of the optimizer, as numbered in extents */
	/* With experts: the groups of experts of each expert-parallel rank of the widest layer;
	 * `ep` is this rank, whose own entry is empty. */
	struct stage0_rank *peers;
	unsigned npeers, ep;
	bool data_first;
};

/*
 * Find the parameters and states of all model-parallel ranks of a scanned directory, which has no
 * optimizer shards.  If they cannot be matched, refuses the optimizer, and serves the model's
 * weights; -ENOTSUP if the weights are unknown, too, as for a pipeline; -EBADMSG if files are not
 * of one checkpoint; otherwise as ptfile_open_source.  Call stage0_free even after a failure.
 */
int stage0_find(struct stage0_rank **out, size_t *n, const struct zero_dir *d, struct errmsg *err);
void stage0_free(struct stage0_rank *v, size_t n);

/* Describe the states of a rank's parameters in the table `c`, as shard_load does.  Messages name
 * `file`. */
int stage0_shard(const struct stage0_rank *r, const struct rank_params *c, struct shard *s,
		 struct partitioning *layout, const char *file, struct errmsg *err);

/* Warn of unusual facts. */
void stage0_warn(const struct stage0_rank *r, const struct errmsg_sink *to);

/* Append the elements of a run.  False when memory runs out. */
bool stage0_add_run(const struct stage0_rank *r, const struct part_run *run, struct extent_map *out);

/* Convert the object `old` of model states to that of stage 1, without its optimizer; and the
 * optimizer to one data-parallel rank's, without flat tensors: the state of one parameter
 * represents those of all.  NULL when the arena is exhausted. */
struct value *stage0_model(const struct stage0_rank *r, struct value *old, struct arena *a);
struct value *stage0_optimizer(const struct stage0_rank *r, struct value *old, struct arena *a);

#endif
