/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_OPTIMIZER_H
#define UCKPT_DCP_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/foreign/dcp_model.h"

struct bytebuf;

/* A weight, a state or an option of a parameter. */
struct dcp_finding {
	const char *param; /* first: array_by_text */
	const char *field; /* of a state or an option */
	struct dcp_entry *entry;
};

/* Sorted by parameter, then in the order of the entries. */
struct dcp_findings {
	struct dcp_finding *v;
	size_t n;
};

void dcp_findings_sort(struct dcp_findings *l);

/* Return the first of a parameter's `*n` entries, which are adjacent; NULL if it has
 * none. */
struct dcp_finding *dcp_findings_find(const struct dcp_findings *l, const char *param, size_t *n);

/* The search for the optimizer and the model, and what it has found. */
struct dcp_reader {
	struct dcp_model *o;
	struct arena *a; /* of the model */
	const struct dcp_metadata *m;
	const struct dcp_megatron *megatron;
	struct dcp_storage *b;
	const char *file; /* the directory, for messages */
	struct errmsg *err;
	struct dcp_prefix { /* of an optimizer's paths: the first elements of an entry's */
		const struct dcp_entry *entry;
		unsigned depth;
	} optimizers[9]; /* of which ZeRO can have one */
	size_t noptimizers;
	struct dcp_findings states;
	const struct dcp_param *trained; /* the first that has states, or NULL */
	bool numbered; /* the optimizer's parameters have numbers, and no names yet */
	struct dcp_findings weights; /* the model's tensors */
	const char *unread; /* a tensor of the optimizer that is in no place of torch's */
	uint64_t compared;  /* pairs of tensors that may be tied */
};

/* The tensor that the model has under a name, or NULL. */
struct dcp_entry *dcp_weight_find(const struct dcp_reader *f, const char *name);

/* Add to the model what the optimizer does not have. */
int dcp_extras_add(struct dcp_reader *f);

/* Has it the name of a floating buffer, which may have the shape of parameters? */
bool dcp_is_known_buffer(const struct dcp_entry *t);

/* Is it a floating-point type, which weights may have? */
bool dcp_is_floating(enum dtype d);

/* Take over a text as a note for people; the arena of the model remembers a failure. */
void dcp_model_note(struct dcp_model *o, struct bytebuf *text);

/* The field of a parameter's master weight, as Megatron's optimizers call it. */
#define DCP_MASTER "fp32_param"

/* List the parameters of the model's groups, sorted.  False when memory runs out. */
bool dcp_findings_of_groups(const struct dcp_model *o, struct arena *a, struct dcp_findings *out);

/* Find the optimizer, its states and its groups, of which Megatron-LM's has none; or refuse
 * it, or several.  -EBADMSG, -E2BIG, -ENOMEM; errors of dcp_storage_value. */
int dcp_optimizer_find(struct dcp_reader *f);

/* Is the entry of an optimizer? */
bool dcp_optimizer_has(const struct dcp_reader *f, const struct dcp_entry *t);

/*
 * Find which dict of a checkpoint is the model, once its optimizer is known: the one that
 * the context's `model` names, or the one that has the optimizer's parameters in the shapes
 * of their states, has a model's name, and lies nearest to the optimizer.  Sets f->weights
 * and their names, and notes in o->notes what else there is.  A dict that the caller chose and
 * that has not all of the optimizer's parameters has no optimizer.  -ENOTSUP if nothing tells
 * which of several it is, or if there is none; -EBADMSG for two tensors of one name.
 */
int dcp_choose_model(struct dcp_reader *f);

/* A name without what wrappers of modules put into it; NULL when memory runs out. */
const char *dcp_name_clean(struct arena *a, const char *name);

/*
 * Find which tensors of a dict, in any order, are the optimizer's parameters, which have
 * numbers: those of a group are in the model's order, and have the shapes of its
 * states.  Fills in `found`, unless it is NULL: one for each parameter of the groups in turn.
 * -ENOTSUP if there are no such tensors, or if others could be, too.
 */
int dcp_numbers_match(struct dcp_reader *f, const struct dcp_findings *tensors,
		      struct dcp_entry **found);

/* Check the numbers of parameters, and replace them by names where these are recorded. */
int dcp_numbers_check(struct dcp_reader *f);

/* Give the optimizer's parameters the names that they have in the chosen model.  As
 * dcp_numbers_match. */
int dcp_numbers_resolve(struct dcp_reader *f);

#define TIES_MAX (UINT64_C(1) << 24) /* pairs of tensors that are compared */

/* Divide the states of parameters that the model has in three parts.  -ENOTSUP if nothing
 * tells how. */
int dcp_fused_divide(struct dcp_reader *f);

/* Is it another name of the parameter?  1, 0, or an error. */
int dcp_is_tied(const struct dcp_reader *f, const struct dcp_entry *t,
		const struct dcp_entry *weight);

/* Drop what was found of the optimizer, for the reason that has an error. */
int dcp_optimizer_refuse(struct dcp_reader *f);

#endif
