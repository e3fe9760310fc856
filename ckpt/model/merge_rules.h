/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_MERGE_H
#define UCKPT_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct expert_layer;
struct value;

/* How the tensor-parallel slices of a parameter make up the whole, and hence
 * what its universal files say beside the tensor. */
enum merge_rule {
	MERGE_CAT,	      /* one after the other along `dim` */
	MERGE_REPLICATED,     /* all the same: the first */
	MERGE_AVERAGE,	      /* their mean */
	MERGE_TWO_SUB_PARAMS, /* all first halves, then all second halves */
	MERGE_SUB_PARAMS,     /* several parameters in one, each cut by itself */
	MERGE_AFFINE,	      /* pieces at places that a map tells */
	MERGE_EXPERTS,	      /* AutoEP: each rank's experts, by number */
};

struct merge {
	enum merge_rule rule;
	unsigned dim;		     /* of MERGE_CAT */
	const struct value *spec;    /* SUB_PARAMS: its dict; AFFINE: its map */
	size_t holder; /* AFFINE: of pieces that several ranks have, which one
			* they are read from */
	const struct value *widths;  /* SUB_PARAMS: of the shards, or NULL */
	const struct expert_layer *experts; /* EXPERTS: which they are */
	bool vocab;		     /* rows beyond vocab_rows are padding */
	uint64_t vocab_rows;
};

const char *merge_rule_name(enum merge_rule rule);

/*
 * The pattern lists of a checkpoint's `universal_checkpoint_info`, compiled.
 * `file` names the file they come from.  A missing or NULL `info` (Hugging
 * Face Trainer, Accelerate) gives rules that concatenate everything.
 */
struct merge_rules;
int merge_rules_new(const struct value *info, const char *file,
		    struct merge_rules **out, struct errmsg *err);
void merge_rules_free(struct merge_rules *r);

/* The info they were made of, NULL if there was none. */
const struct value *merge_rules_info(const struct merge_rules *r);

/*
 * The rule for a parameter.  -EBADMSG if the lists contradict themselves.
 * Records which patterns matched.  What the result points to lives as long as
 * the rules.
 */
int merge_match(struct merge_rules *r, const char *name, struct merge *out,
		struct errmsg *err);

/* Is it a parameter that pipeline stages after the first only repeat?  1, 0
 * or an error. */
int merge_is_pipeline_replica(struct merge_rules *r, const char *name,
			      struct errmsg *err);

/* The pattern after the `*pos`-th that no parameter has matched, or NULL. */
const char *merge_next_unused(const struct merge_rules *r, size_t *pos);

#endif
