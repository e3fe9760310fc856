/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_OPTIMIZER_H
#define UCKPT_DCP_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/foreign/dcp_model.h"

struct bytebuf;

/* A weight, a state or an option of a parameter. */
struct dcp_finding {
	const char *param; /* must be first: array_by_text */
	const char *field; /* name of a state or an option */
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

/* The search for the optimizer and the model, with its results. */
struct dcp_reader {
	struct dcp_model *o;
	struct arena *a; /* of the model */
	const struct dcp_metadata *m;
	const struct dcp_megatron *megatron;
	struct dcp_storage *b;
	const char *file; /* the directory, for messages */
	struct errmsg *err;
	struct dcp_prefix { /* prefix of an optimizer's paths: an entry's first elements */
		const struct dcp_entry *entry;
		unsigned depth;
	} optimizers[9]; /* ZeRO can have only one of these */
	size_t noptimizers;
	struct dcp_findings states;
	const struct dcp_param *trained; /* the first parameter that has states, or NULL */
	bool numbered; /* the optimizer numbers its parameters, and their names are not known yet */
	struct dcp_findings weights; /* the model's tensors */
	const char *unread; /* a tensor of the optimizer that torch's would not have; or NULL */
	uint64_t compared;  /* number of pairs compared to find ties */
};

/* Return the model's tensor with this name, or NULL. */
struct dcp_entry *dcp_weight_find(const struct dcp_reader *f, const char *name);

/* Add the model's tensors that the optimizer does not have. */
int dcp_extras_add(struct dcp_reader *f);

/* Is it the name of a known floating buffer, whose shape may equal a parameter's? */
bool dcp_is_known_buffer(const struct dcp_entry *t);

/* Copy a text as a note for the user; the arena of the model records a failure. */
void dcp_model_note(struct dcp_model *o, struct bytebuf *text);

/* The field of a parameter's master weight in Megatron's optimizers. */
#define DCP_MASTER "fp32_param"

/* List the parameters of the model's groups, sorted.  False when memory runs out. */
bool dcp_findings_of_groups(const struct dcp_model *o, struct arena *a, struct dcp_findings *out);

/* Find the optimizer with its states and groups (Megatron-LM's has no groups); or refuse it, or
 * several optimizers.  -EBADMSG, -E2BIG, -ENOMEM; errors of dcp_storage_value. */
int dcp_optimizer_find(struct dcp_reader *f);

/* Does the entry belong to an optimizer? */
bool dcp_optimizer_has(const struct dcp_reader *f, const struct dcp_entry *t);

/*
 * Find the dict of a checkpoint that is the model, after its optimizer: the one that the context's
 * `model` names, or the one that has the optimizer's parameters in the shapes of their states, has
 * a model's name, and is nearest to the optimizer.  Sets f->weights and their names, and mentions
 * the other dicts in o->notes.  If the chosen dict lacks some of the optimizer's parameters, the
 * optimizer is dropped.  -ENOTSUP if several are possible, or there is none; -EBADMSG for two
 * tensors of one name.
 */
int dcp_choose_model(struct dcp_reader *f);

/* Return a name without the parts that wrappers of modules add; NULL when memory runs out. */
const char *dcp_name_clean(struct arena *a, const char *name);

/*
 * Match numbered parameters of the optimizer with tensors of a dict, which may be in any order: the
 * parameters of a group are in the model's order, and have the shapes of its states.  Fills in
 * `found`, unless it is NULL: one for each parameter of the groups in turn.  -ENOTSUP if there are
 * no such tensors, or if the match is ambiguous.
 */
int dcp_numbers_match(struct dcp_reader *f, const struct dcp_findings *tensors,
		      struct dcp_entry **found);

/* Check the numbers of parameters, and replace them by names if these are recorded. */
int dcp_numbers_check(struct dcp_reader *f);

/* Give the optimizer's parameters their names in the chosen model.  As dcp_numbers_match. */
int dcp_numbers_resolve(struct dcp_reader *f);

#define TIES_MAX (UINT64_C(1) << 24) /* limit of pairs of tensors to compare */

/* Divide the states of parameters that the model stores in three parts.  -ENOTSUP if the division
 * is unknown. */
int dcp_fused_divide(struct dcp_reader *f);

/* Is the tensor another name of the parameter?  1, 0, or an error. */
int dcp_is_tied(const struct dcp_reader *f, const struct dcp_entry *t,
		const struct dcp_entry *weight);

/* Drop the optimizer; the error holds the reason. */
int dcp_optimizer_refuse(struct dcp_reader *f);

#endif
