/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STAGE0_H
#define UCKPT_STAGE0_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/arena.h"
#include "ckpt/dcp/model.h"
#include "ckpt/format/ptfile.h"

struct dcp_blobs;
struct errmsg;
struct uckpt;

/* The name, in a directory, of one that no disk has: the files of a checkpoint that
 * DeepSpeed saved there without ZeRO, as those of ZeRO stage 1. */
#define STAGE0_DIR ".stage0"

/* The file that shows that there may be such a checkpoint. */
#define STAGE0_FIRST "mp_rank_00_model_states.pt"

/* Is it the path of such a directory? */
bool stage0_is_dir(const char *path);

/*
 * What a directory has by its first model states, if it has no shards of ZeRO's optimizer.
 * No other file is opened, as a run may have many of them.  Weights that model states have
 * are served without an optimizer: one that is not read, or whose files were deleted.
 */
enum stage0_kind { STAGE0_NONE, STAGE0_WEIGHTS, STAGE0_OPTIMIZER };
enum stage0_kind stage0_look(struct uckpt *u, const char *dir);

/* A file of torch.save. */
struct stage0_file {
	const char *path;
	struct ptfile pt; /* has no root unless it is open */
	uint64_t size;	  /* bytes, once it was opened */
	uint32_t number;  /* in the metadata */
	unsigned rank;	  /* of a layer: its tensor-parallel rank */
	unsigned layer;
};

/* The files of a checkpoint: model states are open, and layers one at a time. */
struct stage0 {
	struct dcp_metadata *m; /* has their paths */
	struct arena arena;
	struct stage0_file *parts; /* model states, by model-parallel rank */
	size_t nparts;
	struct stage0_file *layers; /* of a pipeline, by rank and number */
	size_t nlayers;
	unsigned tensor; /* ranks of tensor parallelism, if there are layers */
	size_t *next;	 /* layer, by tensor-parallel rank */
	struct stage0_tie {
		unsigned rank; /* of tensor parallelism */
		const char *name;
		struct dcp_item *weight;
	} *ties; /* parameters of tied modules in the stages so far */
	size_t nties, ties_cap;
};

/* List the files of the checkpoint in the directory that STAGE0_DIR stands in, and add them
 * to the metadata.  -EBADMSG if one is missing.  Call stage0_close in the end. */
int stage0_list(struct stage0 *s, struct dcp_metadata *m, struct uckpt *u,
		const char *path, struct errmsg *err);

/* Open the model states.  -ENOENT if nothing in them is read; as dcp_blobs_open and
 * ptfile_open_source. */
int stage0_open(struct stage0 *s, const struct dcp_blobs *b, struct errmsg *err);

/* Add an item for each file to the metadata, once there is a model of each rank.  -ENOMEM. */
int stage0_add_items(const struct stage0 *s, struct errmsg *err);

/* What open model states come from, for people. */
const char *stage0_source(const struct stage0 *s);

void stage0_close(struct stage0 *s);

/*
 * Find the parameters and states of a model-parallel rank; ranks come in order.  Where they
 * cannot be told, the optimizer is refused, and the model has its weights; -ENOTSUP if this
 * does not help, as for a pipeline; -EBADMSG.  `o` borrows from `s`, for
 * dcp_zerofile_init, and must outlive it.
 */
int stage0_model(struct stage0 *s, size_t part, struct dcp_blobs *b,
		 struct dcp_model *o, struct errmsg *err);

#endif
