/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_UC_FILE_H
#define UCKPT_UC_FILE_H

#include "ckpt/base/bytebuf.h"
#include "ckpt/format/ptwrite.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/gather.h"

struct arena;
struct errmsg;
struct param;
struct zero_checkpoint;
struct shard_group;
struct value;

/* The layout of a file: that of torch.save, or else `head` followed by the
 * storages. */
struct uc_file {
	struct ptwrite w;
	struct bytebuf head;
	uint64_t size; /* of the whole file */
	struct extent_map *storages;
	size_t nstorages;
	struct gathers gathers; /* referred to by extents */
};

void uc_file_done(struct uc_file *c);

/*
 * Functions that lay out a file are passed an empty one; call uc_file_done afterwards,
 * also after a failure.
 *
 * Lay out the torch.save of `root`, which refers to `n` storages of len[i]
 * bytes.  The caller then fills in the storages' extents.  `root` may be NULL,
 * which reports -ENOMEM. Other errors as pickle_dump and ptwrite_init.
 */
int uc_file_lay_out(struct uc_file *c, const char *prefix,
		    const struct value *root, const uint64_t *len, size_t n,
		    struct errmsg *err);

/* Stages 1 and 2 restore the parameters of as many groups as both their engine and
 * the list in optimizer_state.pt have (deepspeed/runtime/base_optimizer.py,
 * load_hp_checkpoint_state_from_checkpoint_dir).  Where the engine's number is
 * unknown, the list has so many, more than programs make. */
#define UC_FILE_GROUPS 64

/* Build a list of `n` empty dicts: param_groups that say nothing.  A loader
 * updates its own groups from them and so keeps its hyperparameters.  NULL if the
 * arena is exhausted, like the next. */
struct value *uc_file_empty_groups(struct arena *a, size_t n);

/*
 * Build what stage 3's loader reads from optimizer_state.pt:
 *
 *   {state: {0: {step}}, param_groups}
 *
 * `step` may be NULL: there is none.  stage3.py,
 * load_hp_checkpoint_state_from_checkpoint_dir_stage3.
 */
struct value *uc_file_stage3_state(struct arena *a, struct value *step,
				   struct value *groups);

/*
 * The files of a parameter: slot 0 is fp32.pt, slot i is state i - 1 of its
 * group.
 */
#define UC_FILE_SLOTS 16

/* The stem of the file in `slot` ("exp_avg"), or NULL if there is none.  `g` is
 * the parameter's group, NULL if the optimizer does not own it. */
const char *uc_file_name(const struct zero_checkpoint *r,
			 const struct shard_group *g, const struct param *p,
			 unsigned slot);

/* Check that all of the parameter's files can be computed.  Returns -ENOTSUP or
 * -EBADMSG if not.  Opens only the first shard of the parameter's rank. */
int uc_file_check_param(struct zero_checkpoint *r, const struct param *p,
			struct errmsg *err);

/*
 * Lay out a parameter's file.  Without `extents` only the size is valid, and
 * only rank 0's shard is opened.
 */
int uc_file_of_param(struct zero_checkpoint *r, const struct param *p,
		     unsigned slot, bool extents, struct uc_file *out,
		     struct errmsg *err);

/* Lay out zero/optimizer_state.pt, whose extents refer to shard 0. */
int uc_file_of_optimizer(struct zero_checkpoint *r, struct uc_file *out,
			 struct errmsg *err);

#endif
