/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RANK_PARAMS_H
#define UCKPT_RANK_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/experts.h"
#include "ckpt/table/merge_rules.h"
#include "ckpt/table/rank_table.h"

struct zero_dir;
struct ckpt_file;
struct ptfile;
struct value;

/* An entry of a state dict. */
struct rank_entry {
	const char *name;
	const struct stored *stored; /* NULL: see `why` */
	/* 1: no plain tensor of a known type; or an error of ptfile_tensor.  `why` has the
	 * reason. */
	int rc;
	const char *why;
	enum param_kind kind; /* PARAM_TRAINED, PARAM_ALIAS: not needed by views of weights */
	bool universal;       /* part of the universal tree */
};

/* A model-parallel rank's tensors besides the optimizer's parameters. */
struct rank_rest {
	/* Entries of `module`, in its order, in stage 3 only buffers; then those of experts'
	 * files. */
	struct rank_entry **v;
	size_t n, cap;
	/* Entries that frozen_param_shapes lists, in its order; in stage 3 none. */
	const struct rank_entry **frozen;
	size_t nfrozen;
	/* Further names of tensors: shared_params, then those that `module` shows. */
	struct ties ties;
	/* Names of a pipeline's buffers, since a pipeline has no module. */
	const char **buffers;
	size_t nbuffers;
};

/* The parameter table of one model-parallel rank, from its model-states file:
 * every parameter's name, shape and place in the flat groups. No optimizer
 * shard is opened. Immutable after rank_params_load. */
struct rank_params {
	struct arena arena;
	unsigned mp;
	struct slice *slices; /* sorted by name */
	size_t nslices;
	size_t slices_cap;
	struct slice_group *groups;
	size_t ngroups;
	struct experts experts;
	struct rank_rest rest; /* in stage 3 only after it was read */
	struct run_facts facts;
	bool zenflow;
	int64_t dp_world_size;	/* -1 if not recorded */
	int64_t mp_world_size;	/* -1 if not recorded */
	struct merge_rules *rules; /* of its universal_checkpoint_info */
	int64_t tp_degree, pp_degree; /* -1 if not recorded */
	struct errmsg_list warnings; /* skipped tensors, and why */
};

/* Converts the object of model states into the form that ZeRO saves; NULL when memory runs out. */
struct rank_object {
	struct value *(*make)(void *ctx, unsigned mp, struct ptfile *pt);
	void *ctx;
};

/* Read the table of model-parallel rank `mp` of a scanned directory.  Messages name the file.
 * `object` may be NULL: the file's object is used as it is. */
int rank_params_load(struct rank_params *c, const struct zero_dir *dir, unsigned mp,
		     const struct rank_object *object, struct errmsg *err);
void rank_params_done(struct rank_params *c);

/* Find the experts of a loaded table from their files, assign them their slices, and add
 * tensors that the optimizer does not own.  `tp`: tensor-parallel ranks. */
int rank_params_find_experts(struct rank_params *c, const struct zero_dir *dir, unsigned tp,
			     struct errmsg *err);

/* Read `rest` from the open model states of stage 3; other stages read it with the table. */
int rank_params_read_rest(struct rank_params *c, const struct zero_dir *dir,
			  const struct ptfile *pt, struct errmsg *err);

/* Fill in an entry, whose name is set, from tensor `v` of the open file, number `file` in
 * extents; `t` becomes the tensor if the entry's `rc` is 0.  -ENOMEM; other errors are the
 * entry's. */
int rank_entry_read(struct rank_entry *e, struct arena *a, const struct ptfile *pt,
		    uint32_t file, const struct value *v, struct tensor *t, struct errmsg *err);

/* Find the fragment of a frozen parameter in a model-states file; it is probably fragment
 * `index`.  -EBADMSG if there is none. */
int rank_params_fragment(const struct ptfile *pt, const char *name, size_t index,
			 const struct value **out, struct errmsg *err);

/* Check that an expert's file (one of zero_dir.expert) holds what the table of
 * its directory expects. -EBADMSG if not; errors of ptfile_open_source. */
int rank_params_check_expert(const struct rank_params *c,
			     const struct ckpt_file *f, struct errmsg *err);

#endif
