/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CHECKPOINT_H
#define UCKPT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/attrs.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/tensor.h"
#include "ckpt/table/rank_table.h"

struct checkpoint_ops;
struct dirlist;
struct file_layout;
struct experts;
struct extent_map;
struct gathers;
struct merge_rules;
struct param;
struct shards;
struct ckpt_file;
struct uckpt;
struct user_rules;
struct value;

enum state_kind {
	STATE_FLAT,   /* one element per parameter element: exp_avg */
	STATE_TENSOR, /* a 0-d tensor for the whole group: torch Adam's step */
	STATE_INT,    /* a number for the whole group: FusedAdam's step */
	STATE_FLOAT,
};

/* A state of parameters, and its place in the loader's files. */
struct param_state {
	const char *name;
	enum state_kind kind;
	enum dtype dtype;
	bool requires_grad;
	union {
		uint8_t bytes[16]; /* STATE_TENSOR: its element */
		int64_t i;         /* STATE_INT */
		double f;          /* STATE_FLOAT */
	};
	/* Private to ZeRO: the tensor of a rank for all parameters of a group. */
	uint64_t offset; /* of element 0 in the file, in bytes */
	uint64_t numel;
	uint32_t swapped; /* 1 + index in zero_dir.swapped if the tensor is in a separate file, else
			   * 0 */
};

/* Is it the master weight? */
static inline bool param_state_is_master(const struct param_state *st)
{
	return strcmp(st->name, "fp32") == 0;
}

/* Set a state to a Python number; false if the value is not a number. */
bool param_state_set_number(struct param_state *st, const struct value *v);

/* Get the number that a state has for the whole group; false if it is not a number. */
bool param_state_number(const struct param_state *st, double *out);

/* Are two states equal, apart from the elements of parameters? */
bool param_state_equal(const struct param_state *a, const struct param_state *b);

/* Limit of a parameter's optimizer states; Adam has three. */
#define PARAM_STATES_MAX 15

/* The states of a set of parameters: first the master weights, "fp32". */
struct param_states {
	struct param_state *v;
	size_t n;
	/* Reason why the optimizer's states cannot be divided among parameters, and the error code;
	 * NULL: they can be divided.  If refused, only the master weights are listed. */
	const char *refused;
	int refused_rc;
};

/*
 * A checkpoint of any source: the files of a directory, and the rows of a table of
 * parameters that are read from them.  Immutable once open, and thread-safe.
 */
struct checkpoint {
	struct uckpt *u;
	const struct checkpoint_ops *ops;
	/* The directory: `path` does not end in a slash, and `tag` is its last component.  The
	 * loader fills in `st`, the owner and the permission bits. */
	char *path, *tag;
	struct stat st;
	const struct dirlist *names_there; /* list of the directory, while `list` runs; or NULL */
	/* Numbered as in extents: */
	const struct ckpt_file *files;
	size_t nfiles;
	struct shards *shards; /* shards of the files, with the same numbers */
	size_t witness;        /* a save replaces this file and the first one with all others */
	int64_t mtime_s;
	struct permissions readable_by; /* users that may read all files */
	struct permissions names;       /* users that may read the files with names of parameters */
	bool mixed;                     /* not all files have the same readers */
	unsigned read_threads;          /* files to read at once; 0: one per processor */
	const char *left; /* names of files from an earlier save, which are not listed; or NULL */
	struct run_facts facts;
	struct errmsg_list notes; /* messages about a foreign source that concern all views */
	/* Files that a re-cut copies unchanged: files of a pipeline's layers and of experts. */
	const struct ckpt_file *layers, *experts;
	size_t nlayers, nexperts;
	/* The parameters of model-parallel rank mp, which is tensor-parallel rank mp % tp of
	 * stage mp / tp. */
	const struct rank_table *ranks;
	unsigned tp, pp, dp;
	const struct experts *const *moe; /* for each pipeline stage: its layers with experts; or
					   * NULL */
	const struct merge_rules *rules; /* rules that all rows were matched with; or NULL */
	const struct param *scaled;      /* a row with scaled pieces, or NULL */
	/* The rows, sorted by name: */
	const struct param *params;
	size_t nparams;
	size_t nmore; /* number of rows after these, whose types are not real numbers: only for
		       * views of weights */
	/* Rows of views of weights, in the order of the state dict; NULL until checkpoint_order.
	 * A vocabulary that several ranks share is without its padding. */
	const struct param *const *order;
	size_t norder;
	struct errmsg_list left_out; /* tensors without a row, and the reasons */
};

/* An object that a data-parallel rank has pickled: its part of the module (without stage 3, only
 * rank 0 has it), or its part of the optimizer. */
enum checkpoint_object { OBJECT_MODEL, OBJECT_OPTIMIZER };

/* Stages 1 and 2 restore the parameters of as many groups as both their engine and the list in
 * optimizer_state.pt have (deepspeed/runtime/base_optimizer.py,
 * load_hp_checkpoint_state_from_checkpoint_dir).  Where the engine's number is unknown, the list
 * has ENGINE_GROUPS_MAX groups, more than programs make. */
#define ENGINE_GROUPS_MAX 64

/* Consecutive elements of a state of a slice. */
struct part_run {
	const struct slice *slice;
	unsigned ep; /* expert-parallel rank */
	const struct param_state *state;
	uint64_t first, numel;
	enum dtype to; /* type to convert to */
};

/* A kind of source.  Errors are those of view_open. */
struct checkpoint_ops {
	size_t size; /* of the loader's structure, which begins with a checkpoint */
	/* Fill in the members that concern files, except `shards`. */
	int (*list)(struct checkpoint *c, struct errmsg *err);
	/* Read the rows, and open `shards` if needed.  `rules` (may be NULL) precede those of
	 * the checkpoint. */
	int (*load)(struct checkpoint *c, const struct user_rules *rules, struct errmsg *err);
	/* Read which states all rows have.  -EBADMSG if the files' steps differ.  `states`: also
	 * check that the optimizer's states can be divided among parameters; -ENOTSUP, or -EBADMSG
	 * for damage, with the first reason.  Master weights can be read then. */
	int (*check)(struct checkpoint *c, bool states, struct errmsg *err);
	/* Find the states of a row; NULL if the optimizer does not own it.  c->ranks then has
	 * the states of all groups of its first slice's rank. */
	int (*states)(struct checkpoint *c, const struct param *p, const struct param_states **out,
		      struct errmsg *err);
	/* Append the elements of a row's state that is not STATE_FLAT or of a row without
	 * slices: runs of files, or a gather, which is added to `gathers`; without a state, the
	 * elements of the module's tensor, unless that is a single stored one.  -ENOTSUP or
	 * -EBADMSG if they cannot be computed. */
	int (*extents)(struct checkpoint *c, const struct param *p, const struct param_state *state,
		       struct extent_map *out, struct gathers *gathers, struct errmsg *err);
	/* Append the elements of runs, from all data-parallel ranks that have some; or, if `out` is
	 * NULL, only load the maps that locate them.  The runs are of slices of one group of one
	 * model-parallel and one expert-parallel rank, which have the states.  They may become
	 * gathers, unless `gathers` is NULL. */
	int (*parts)(struct checkpoint *c, const struct part_run *v, size_t n,
		     struct extent_map *out, struct gathers *gathers, struct errmsg *err);
	/* Return the file that has a rank's object, or NULL.  The function is NULL if no file
	 * has any. */
	const struct ckpt_file *(*file)(const struct checkpoint *c, enum checkpoint_object what,
				       unsigned mp, unsigned rank);
	/* Return the object, which lives as long as the layout, whose old file has its tensors.  If
	 * no file has it, make the object that one data-parallel rank of stage 1 would have saved,
	 * without the elements of rows: states have any value, flat groups, param_slice_mappings,
	 * module, param_shapes, buffer_names and shared_params may be missing; `order` is known
	 * then.  NULL with the layout's error. */
	struct value *(*object)(struct checkpoint *c, enum checkpoint_object what, unsigned mp,
				unsigned rank, struct file_layout *d);
	/* Prefetch data that readers of the first `n` files will need.  NULL: nothing is
	 * prefetched. */
	void (*warm)(struct checkpoint *c, size_t n);
	/* Fill in `order` and `left_out`.  NULL: `load` fills them in. */
	int (*order)(struct checkpoint *c, struct errmsg *err);
	/* Would the same files of a directory be chosen again?  NULL: yes. */
	bool (*is_chosen)(const struct checkpoint *c);
	/* Warn of unusual facts, without opening another file. */
	void (*warn)(const struct checkpoint *c, const struct errmsg_sink *to);
	/* Check that all files belong together.  NULL: loading checks this. */
	int (*verify)(struct checkpoint *c, struct errmsg *err);
	/* Report each problem that `verify` would find, perhaps twice, on the caller's thread.
	 * Unless `all` is set, the caller opens model states and layers itself.  NULL: there are
	 * none. */
	void (*problems)(struct checkpoint *c, bool all, const struct errmsg_sink *found);
	/* Check that the model states at `path`, whose object is `root`, record the same facts of
	 * the run as the first model states.  NULL: they always do. */
	int (*check_facts)(const struct checkpoint *c, const char *path, const struct value *root,
			   struct errmsg *err);
	/* Free everything that the functions above have made, also after a failure. */
	void (*close)(struct checkpoint *c);
};

/* List the files of a directory without reading any; `names` is its list, or NULL.  Call
 * checkpoint_close after success. */
int checkpoint_list(struct uckpt *u, const struct checkpoint_ops *ops, const char *path,
		    const struct dirlist *names, struct checkpoint **out, struct errmsg *err);

/* List the files and read the rows. */
int checkpoint_open(struct uckpt *u, const struct checkpoint_ops *ops, const char *path,
		    const struct dirlist *names, const struct user_rules *rules,
		    struct checkpoint **out, struct errmsg *err);
void checkpoint_close(struct checkpoint *c);

/*
 * Find the rows of views of weights, once.  Only one thread at a time may call it.  -ENOTSUP, with
 * a message that names file and tensor, if a row is refused, for example because nothing records
 * how tensor-parallel ranks cut it; the other rows can be read then.  Other errors are those of
 * checkpoint_open.
 */
int checkpoint_order(struct checkpoint *c, struct errmsg *err);

/* Check that no row is refused, or none of `order`.  -ENOTSUP, as checkpoint_order. */
int checkpoint_check_rows(const struct checkpoint *c, bool ordered, struct errmsg *err);

/* The type of a row's weights if floating-point numbers are converted to type `to`. */
enum dtype checkpoint_dtype(const struct param *p, enum dtype to);

/* Return the row with that name, or NULL. */
const struct param *checkpoint_find(const struct checkpoint *c, const char *name);

/* Return the file with a rank's object, or NULL. */
static inline const struct ckpt_file *
checkpoint_file(const struct checkpoint *c, enum checkpoint_object what, unsigned mp, unsigned rank)
{
	return c->ops->file ? c->ops->file(c, what, mp, rank) : NULL;
}

/* Return the path of the file with a rank's object or, if there is none, of the checkpoint. */
const char *checkpoint_path(const struct checkpoint *c, enum checkpoint_object what, unsigned mp,
			    unsigned rank);

/* Append the elements of a whole slice as runs; as checkpoint_ops.parts. */
int checkpoint_slice(struct checkpoint *c, const struct slice *s, const struct param_state *state,
		     struct extent_map *out, struct gathers *gathers, struct errmsg *err);

/* Append the elements of a row's state, joined from its slices if it has some; otherwise as
 * checkpoint_ops.extents. */
int checkpoint_extents(struct checkpoint *c, const struct param *p, const struct param_state *state,
		       struct extent_map *out, struct gathers *gathers, struct errmsg *err);

/* Check that a parameter's state can be computed, if it has computed elements.  -ENOTSUP or
 * -EBADMSG if not. */
int checkpoint_check_param(const struct param *p, const struct param_state *state,
			   struct errmsg *err);

/* Are universal files flat 1-D tensors, as in stage 3 without tensor parallelism? */
static inline bool checkpoint_is_flat(const struct checkpoint *c)
{
	return c->facts.zero3 && c->tp == 1;
}

/* Append the elements of a row of `order`, converted to type `to`: its weights. */
int checkpoint_weights(struct checkpoint *c, const struct param *p, enum dtype to,
		       struct extent_map *out, struct gathers *gathers, struct errmsg *err);

/* Append the module's tensor of a row, converted to type `to`.  A row that the optimizer owns
 * has one only if the loader keeps it. */
int checkpoint_module(struct checkpoint *c, const struct param *p, enum dtype to,
		      struct extent_map *out, struct gathers *gathers, struct errmsg *err);

/* Warn if the step differs from the one in the tag's name, or from the first group's states;
 * these may be ahead by more than one step unless `most`.  `first` may be NULL.  The names are
 * those of the files. */
void checkpoint_warn_of_steps(const struct checkpoint *c, const char *model, const char *optimizer,
			      const struct param_states *first, bool most,
			      const struct errmsg_sink *to);

/* Make a list of `n` files to open on demand, in their order; NULL when memory runs out. */
struct shards *checkpoint_shards(struct uckpt *u, const struct ckpt_file *files, size_t n);

#endif
