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
struct tagdir;
struct value;

/* Where a file has the elements of a parameter. */
struct stage0_place {
	uint32_t file; /* in the numbering of extents */
	enum dtype dtype;
	uint64_t at; /* bytes */
};

/* A group of the optimizer's. */
struct stage0_group {
	struct stage0_owned {
		const char *name;
		const struct stored *weight;
		/* One for the master weight, then one for each flat state, in their order. */
		struct stage0_place *places;
		/* AutoEP's experts of a rank, of which each has a file with its part of the
		 * master weight, in their order; NULL: one place has all. */
		const struct stage0_place *pieces;
	} * params; /* in the optimizer's order */
	size_t nparams, cap;
	bool experts;
	struct param_state *states; /* without the master weights */
	size_t nstates;
	uint64_t number; /* of a parameter that has all of them, in the optimizer */
};

/* What a model-parallel rank has of a checkpoint that was saved without ZeRO.  Immutable. */
struct stage0_rank {
	struct arena arena;
	struct stage0_group *groups;
	size_t ngroups;
	struct ties ties; /* of parameters */
	enum dtype weights;  /* the type of the first parameter's master */
	bool steps_differ;   /* within a group: the first parameter's is used */
	const char *source;  /* in words */
	const char *refused; /* why the optimizer is not read: it has no states then */
	bool lost;           /* there is none */
	bool bf16;           /* the run was of that type */
	uint32_t file;       /* of the optimizer, in the numbering of extents */
	/* With experts: what each expert-parallel rank of the widest layer has, in groups of
	 * experts alone; this is `ep`, whose own entry is empty. */
	struct stage0_rank *peers;
	unsigned npeers, ep;
	bool data_first;
};

/*
 * Find the parameters and states of all model-parallel ranks of a scanned directory, which
 * has no optimizer shards.  Where they cannot be told, the optimizer is refused, and the model
 * has its weights; -ENOTSUP if this does not help, as for a pipeline; -EBADMSG if files are
 * not of one checkpoint; otherwise as ptfile_open_source.  stage0_free takes what was found,
 * also after a failure.
 */
int stage0_find(struct stage0_rank **out, size_t *n, const struct tagdir *d, struct errmsg *err);
void stage0_free(struct stage0_rank *v, size_t n);

/* Say which states a rank's parameters have as shard_load does, whose parameters are in the
 * table `c`.  Messages name `file`. */
int stage0_shard(const struct stage0_rank *r, const struct rank_params *c, struct shard *s,
		 struct partitioning *layout, const char *file, struct errmsg *err);

/* Say what is unusual. */
void stage0_warn(const struct stage0_rank *r, const struct errmsg_sink *to);

/* Append the elements of a run.  False when memory runs out. */
bool stage0_add_run(const struct stage0_rank *r, const struct part_run *run, struct extent_map *out);

/* The object `old` of model states as that of stage 1, without its optimizer; and this as one
 * data-parallel rank has it, but for flat tensors: in place of a state it has that of one
 * parameter.  NULL when the
 * arena is exhausted. */
struct value *stage0_model(const struct stage0_rank *r, struct value *old, struct arena *a);
struct value *stage0_optimizer(const struct stage0_rank *r, struct value *old, struct arena *a);

#endif
