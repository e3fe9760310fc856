/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCPVIEW_STATE_H
#define UCKPT_DCPVIEW_STATE_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/views/dcpview_metadata.h"
#include "ckpt/views/plan.h"

struct checkpoint;
struct dcpview_fused;
struct param_state;

/* A file: the chunks of a tensor, or all objects of a directory. */
struct dcpview_file {
	const char *name;  /* must be first: array_by_text */
	size_t weight;     /* number of the row, or DCPVIEW_OBJECTS */
	const struct param_state *state; /* NULL: the weight itself */
	const struct dcpview_fused *fused; /* the state is of this parameter; or NULL */
	size_t entry;      /* number of the tensor's entry */
};

#define DCPVIEW_OBJECTS SIZE_MAX

/* A directory with a `.metadata`. */
struct dcpview_dir {
	struct dcpview_entry *v;
	size_t n, cap;
	struct dcpview_file *files; /* sorted by name */
	size_t nfiles, files_cap;
	struct bytebuf objects; /* blobs of settings and of 0-d states */
};

/* The state dicts of a model and its optimizer.  Immutable once made. */
struct dcpview_state {
	struct arena arena;
	struct dcpview_dir dirs[2];
	unsigned ndirs;
	bool apart; /* model and optimizer have separate directories */
	struct errmsg left_out; /* reason why a setting of the optimizer is left out; or empty */
};

/*
 * Collect the rows of weights, whose order is known, and, if `optimizer` is set, the
 * optimizer's states and param_groups, which are read from the first optimizer shard.
 * A setting that is a tensor becomes its number; one that cannot be saved is left out.
 * -ENOTSUP if two tensors would have the same file, or as dcpview_fused_find; other errors as tag_file_open.  Call
 * dcpview_state_done after failure, too.
 */
int dcpview_state_make(struct dcpview_state *s, enum dcp_style style, struct checkpoint *c,
		       bool optimizer, struct errmsg *err);
void dcpview_state_done(struct dcpview_state *s);

#endif
