/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ROWS_H
#define UCKPT_ROWS_H

#include "ckpt/base/arena.h"
#include "ckpt/table/rank_params.h"
#include "ckpt/table/frozen.h"

struct checkpoint;
struct errmsg;
struct param;
struct zero_checkpoint;

/* The rows of views of weights of a ZeRO checkpoint, with data that only these views need. */
struct rows {
	struct arena arena;
	struct param **v; /* in the order of zero_to_fp32.py */
	size_t n, cap;
	struct frozen frozen; /* of stage 3 */
};

/*
 * Find the rows, for checkpoint_ops.order: names and shapes are those of one model-states file per
 * model-parallel rank; with ZeRO-3 and frozen parameters all model-states files are opened, and of
 * a pipeline the layers' files.  Tensors that are not plain, or of unknown types, are left out.
 * Errors are those of checkpoint_open.
 */
int rows_find(struct checkpoint *c, struct errmsg *err);
void rows_done(struct zero_checkpoint *r);

/* For rows.c and rows_layers.c: rows while they are found. */
struct rows_finder {
	struct zero_checkpoint *r;
	struct rows *rows;
	struct errmsg *err;
	void *names; /* search tree of rows by name */
};

int rows_nomem(const struct rows_finder *f);

/* Record why a tensor has no row.  -ENOMEM. */
int rows_leave_out(struct rows_finder *f, const char *name, const char *why);

/* Return the row with that name, or NULL. */
struct param *rows_by_name(const struct rows_finder *f, const char *name);

/*
 * Add the row of a tensor that the optimizer does not own.  If an earlier rank has a tensor of that
 * name, both must be equal, or the row is refused: only the optimizer's shards show how a tensor is
 * cut.
 */
int rows_add_stored(struct rows_finder *f, const struct rank_entry *e);

/* Add the tensors of a pipeline's layers that are not the optimizer's parameters. */
int rows_find_layers(struct rows_finder *f);

#endif
