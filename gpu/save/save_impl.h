/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SAVE_IMPL_H
#define UCTRAIN_SAVE_IMPL_H

#include <limits.h>

#include "ckpt/sys/outdir.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/config/config.h"
#include "gpu/model/gpt2.h"
#include "gpu/save/ptsave.h"
#include "gpu/save/saver.h"
#include "gpu/zero/loss_scaler.h"
#include "gpu/zero/zero.h"

/* Between the files of save. */

#define SAVE_TAG "global_step"
#define SAVE_FILES 2

struct save {
	const struct zero *zero;
	const struct save_options *o;
	const char *dir; /* where files go */
};

/* A file, before it is written. */
struct save_file {
	struct ptsave pt;
	struct value *root;
	char *path; /* NULL: this rank has none */
};

/* Make this rank's model states, if it has any. */
int save_model(const struct save *s, struct save_file *f, struct errmsg *err);

/* Make this rank's shard of the optimizer (stages 1 to 3). */
int save_shard(const struct save *s, struct save_file *f, struct errmsg *err);

/* What stage 0 has under `optimizer` in the model states. */
struct value *save_whole_optimizer(const struct save *s, struct ptsave *pt);

/* A checkpoint in the making. */
struct checkpoint {
	struct save_options o;
	bool first;	     /* this is rank 0 */
	struct outdir dir;   /* of rank 0 */
	char path[PATH_MAX]; /* where files go */
	struct save_file files[SAVE_FILES];
};

/* Write the model's config.json into the checkpoint; by rank 0. */
int save_config(const struct checkpoint *c, struct errmsg *err);

/* Called by all ranks, which get the same result: make the directory, and the
 * files as values.  What these refer to on the device stays there. */
int checkpoint_begin(struct checkpoint *c, const struct zero *z,
		     const struct save_options *o, struct errmsg *err);

/* As checkpoint_begin, without a directory: to see what it would be. */
int checkpoint_sketch(struct checkpoint *c, const struct zero *z,
		      const struct save_options *o, struct errmsg *err);

/* Bytes of the device that this rank's files refer to. */
size_t checkpoint_bytes(const struct checkpoint *c);

/* Put this rank's files on the medium; by any thread. */
int checkpoint_write(struct checkpoint *c, struct errmsg *err);

/* When all ranks have: let it appear, and those go that are too many (one that
 * cannot be removed is told on stderr and stays); does something on rank 0 only,
 * by any thread. */
int checkpoint_commit(struct checkpoint *c, struct errmsg *err);

/* When no rank writes any more. */
void checkpoint_end(struct checkpoint *c);

/* Keep `k` checkpoints (0: all) up to `step`, which has just been saved. */
int save_keep_last(const char *dir, unsigned k, uint64_t step,
		   struct errmsg *err);

/* Remove what saves have left in `dir` that were killed. */
void save_sweep(const char *dir);

#endif
