/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_H
#define UCKPT_DCP_H

#include "ckpt/foreign/dcp_model.h"
#include "ckpt/foreign/dcp_storage.h"
#include "ckpt/table/checkpoint.h"

struct errmsg;
struct extent_map;
struct merge_rules;
struct user_rules;

/*
 * A distributed checkpoint: a directory that FSDP or another user of torch.distributed.checkpoint
 * saved, or Accelerate's pair of directories for the model and the optimizer.  Its files are the
 * files that the metadata names, then the metadata itself.
 */
struct dcp_checkpoint {
	struct checkpoint c;
	struct ckpt_file *files;
	struct dcp_metadata metadata;
	/* For files of ranks without metadata: the number of the model's files, before the
	 * optimizer's; the model's name; and a note, or NULL. */
	size_t nranks;
	const char *rank_model, *rank_note;
	struct dcp_megatron megatron;
	struct dcp_storage storage;
	struct dcp_model model;
	struct arena arena; /* of the following */
	struct merge_rules *rules;
	/* Each row has the module's entry (own): first the rows of c->params, then rows that only
	 * `order` has. */
	struct param *rows;
	size_t nrows;
	struct rank_table rank;
	struct slice *slices;
	struct slice_group *groups;
	struct param_states *states; /* of each group */
	const struct param **order;
	struct errmsg_list warnings; /* rows that the universal tree lacks */
};

extern const struct checkpoint_ops dcp_checkpoint_ops;

/* Return `c` as a distributed checkpoint, or NULL if another loader made it. */
static inline struct dcp_checkpoint *dcp_of(struct checkpoint *c)
{
	return c && c->ops == &dcp_checkpoint_ops ? (struct dcp_checkpoint *)c : NULL;
}

/* Make the rows, once the model is known.  -ENOMEM; errors of merge rules. */
int dcp_rows(struct dcp_checkpoint *x, const struct user_rules *rules, struct errmsg *err);

/* For checkpoint_ops. */
struct value *dcp_object(struct checkpoint *c, enum checkpoint_object what, unsigned mp,
			 unsigned rank, struct file_layout *d);

/* Append the element of a state that is one tensor for the whole group. */
int dcp_number_extents(struct dcp_checkpoint *x, const struct dcp_state *s, struct extent_map *out,
		       struct errmsg *err);

/* List the files that ranks have saved by torch.save, if there are any (x->nranks), and make
 * entries of their contents.  -ENOTSUP for flat parameters of FSDP1 and unsupported placements;
 * -EBADMSG if ranks are missing or contradict each other; otherwise as rank_files_find and
 * ptfile_open. */
int dcp_ranks_list(struct dcp_checkpoint *x, struct errmsg *err);
int dcp_ranks_read(struct dcp_checkpoint *x, struct errmsg *err);

/* As dcp_of, but NULL unless the data is in records. */
static inline struct dcp_checkpoint *dcp_with_records(struct checkpoint *c)
{
	struct dcp_checkpoint *x = dcp_of(c);

	return x && !x->nranks ? x : NULL;
}

/* Find the places of chunks in safetensors files.  Errors as safetensors_read. */
int dcp_safetensors_find(struct dcp_checkpoint *x, struct errmsg *err);

#endif
