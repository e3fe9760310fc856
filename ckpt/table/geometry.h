/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_GEOMETRY_H
#define UCKPT_GEOMETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/table/merge_rules.h"
#include "ckpt/table/rank_table.h"
#include "ckpt/vfile/gather.h"

struct errmsg;
struct param_states;

/* A row of the table: a parameter of the whole model, or another entry of its state dict. */
struct param {
	const char *name; /* must be first: array_by_text */
	unsigned ndim; /* shape in its universal files */
	const uint64_t *shape;
	uint64_t numel;
	struct merge merge;
	size_t replicas; /* largest number of ranks that hold the same piece */
	bool computed; /* some elements are averaged or scaled */
	/* For a row that the optimizer owns: the slice of each tensor-parallel rank of its pipeline
	 * stage, NULL if a rank has none; for fused experts, the slice of each expert-parallel
	 * rank. */
	const struct slice **slices;
	unsigned nslices;
	const struct slice *first; /* the first slice that is not NULL */
	/* If the optimizer does not own it, `first` is NULL: the tensor in a module or an
	 * expert's file; NULL if checkpoint_ops.extents has it, without a state. */
	const struct stored *module;
	enum dtype module_dtype; /* if the optimizer owns it: the type of the module's own
	                          * tensor, if the loader has that, too, and no file has it as an
	                          * object */
	/* For rows in checkpoint.order: */
	enum param_kind kind;
	enum dtype dtype; /* type of the elements: of master weights, or as stored */
	bool requires_grad;
	size_t number;                     /* index in that order */
	const struct param *same;          /* for an alias: the row that has its elements */
	const struct param_states *states; /* the optimizer's states; NULL: the optimizer does
	                                    * not own the row */
	const void *own; /* private to the loader */
	const char *refused; /* reason why the elements cannot be read, or NULL */
};

/* Return the type of the module's tensor. */
static inline enum dtype param_module_dtype(const struct param *p)
{
	return p->module ? p->module->dtype : p->first ? p->module_dtype : p->dtype;
}

/* Limit of the segments of one row. */
#define GEOMETRY_SEGMENTS_MAX (1u << 22)

/*
 * Find how the slices of a parameter that the optimizer owns form the whole, by its rule.  -EBADMSG
 * if shapes and rule do not agree, or an element of the output has no source. model_load calls it
 * once for the shape, which shows that rule and slices agree, and each open of a file calls it
 * again: that takes microseconds, while keeping the result would take at least 600 bytes for each
 * of a hundred thousand parameters.
 */
int geometry_init(struct geometry *g, const struct param *p, struct errmsg *err);

#endif
