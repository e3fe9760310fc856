/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VIEW_DCP_STATE_H
#define UCKPT_VIEW_DCP_STATE_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/views/view_dcp_metadata.h"
#include "ckpt/views/view.h"

struct checkpoint;
struct view_dcp_fused;
struct param_state;

/* A file: the chunks of a tensor, or all objects of a directory. */
struct view_dcp_file {
	const char *name;  /* must be first: array_by_text */
	size_t weight;     /* number of the row, or VIEW_DCP_OBJECTS */
	const struct param_state *state; /* NULL: the weight itself */
	const struct view_dcp_fused *fused; /* the state is of this parameter; or NULL */
	size_t entry;      /* number of the tensor's entry */
};

#define VIEW_DCP_OBJECTS SIZE_MAX

/* A directory with a `.metadata`. */
struct view_dcp_dir {
	struct view_dcp_entry *v;
	size_t n, cap;
	struct view_dcp_file *files; /* sorted by name */
	size_t nfiles, files_cap;
	struct bytebuf objects; /* blobs of settings and of 0-d states */
};

/* The state dicts of a model and its optimizer.  Immutable once made. */
struct view_dcp_state {
	struct arena arena;
	struct view_dcp_dir dirs[2];
	unsigned ndirs;
	bool apart; /* model and optimizer have separate directories */
	struct errmsg left_out; /* reason why a setting of the optimizer is left out; or empty */
};

/*
 * Collect the rows of weights, whose order is known, and, if `optimizer` is set, the
 * optimizer's states and param_groups, which are read from the first optimizer shard.
 * A setting that is a tensor becomes its number; one that cannot be saved is left out.
 * -ENOTSUP if two tensors would have the same file, or as view_dcp_fused_find; other errors as ckpt_file_open.  Call
 * view_dcp_state_done after failure, too.
 */
int view_dcp_state_make(struct view_dcp_state *s, enum dcp_style style, struct checkpoint *c,
		       bool optimizer, struct errmsg *err);
void view_dcp_state_done(struct view_dcp_state *s);

#endif
