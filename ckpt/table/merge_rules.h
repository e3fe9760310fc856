/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_MERGE_RULES_H
#define UCKPT_MERGE_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct expert_layer;
struct value;

/* How the tensor-parallel slices of a parameter are merged.  The rule also determines the other
 * entries of its universal files. */
enum merge_rule {
	MERGE_CAT,	      /* concatenated along `dim` */
	MERGE_REPLICATED,     /* equal on all ranks; the first is read */
	MERGE_AVERAGE,	      /* their mean */
	MERGE_TWO_SUB_PARAMS, /* all first halves, then all second halves */
	MERGE_THREE_SUB_PARAMS, /* all first thirds, then all second and all third ones */
	MERGE_SUB_PARAMS,     /* several parameters in one, each cut
			       * separately */
	MERGE_AFFINE,	      /* pieces, placed by an affine map */
	MERGE_EXPERTS,	      /* AutoEP: each rank's experts, by number */
};

struct merge {
	enum merge_rule rule;
	unsigned dim;		     /* for MERGE_CAT */
	bool from_user;		     /* the user gave the rule */
	const struct value *spec;    /* SUB_PARAMS: its dict; AFFINE: its map; EXPERTS: a map or
				      * NULL */
	size_t replica; /* for a map: number of the replica that is read of each piece */
	const struct value *widths;  /* SUB_PARAMS: widths of the shards; NULL: equal */
	const struct expert_layer *experts; /* EXPERTS: the experts' layer */
	bool vocab;		     /* rows beyond vocab_rows are padding */
	uint64_t vocab_rows;
};

const char *merge_rule_name(enum merge_rule rule);

/* Return the number of equal sub-parameters; 1 for other rules. */
unsigned merge_rule_parts(enum merge_rule rule);

/*
 * The pattern lists of a checkpoint's `universal_checkpoint_info`, compiled.
 * `file` names the file they come from.  A missing or NULL `info` (Hugging
 * Face Trainer, Accelerate) gives rules that concatenate everything.
 */
struct merge_rules;
int merge_rules_new(const struct value *info, const char *file,
		    struct merge_rules **out, struct errmsg *err);
void merge_rules_free(struct merge_rules *r);

/* Lists that only users may give: plain concatenation along dimension 0, and three sub-parameters,
 * in the form of the checkpoint's list of two. */
#define MERGE_RULES_COLUMN "parameter_with_column_parallelism_patterns"
#define MERGE_RULES_THREE "parameter_with_3_sub_params_cat_dim_0"

/*
 * Add rules of the user, as an info of the same form, with the two lists above.  They take
 * precedence over all rules added before.  If `presumed`, patterns need not match a parameter.
 * Errors as merge_rules_new.
 */
int merge_rules_override(struct merge_rules *r, const struct value *info,
			 const char *file, bool presumed, struct errmsg *err);

/* Does a parameter that no list names have the default rule, concatenation? Not if there is neither
 * an info of the checkpoint nor a presumed one. */
bool merge_rules_have_default(const struct merge_rules *r);

/* Is it a key of an info that users may give? */
bool merge_rules_knows(const char *key);

/* Find the rule for a parameter. -EBADMSG if the lists contradict themselves.
 * Records which patterns matched. The result points into the rules. */
int merge_rules_match(struct merge_rules *r, const char *name,
		      struct merge *out, struct errmsg *err);

/* Do pipeline stages after the first only repeat the parameter? 1, 0 or an
 * error. */
int merge_is_pipeline_replica(struct merge_rules *r, const char *name, struct errmsg *err);

/* Return the next pattern, from `*pos` on, that has not matched any parameter, or NULL. */
const char *merge_rules_next_unused(const struct merge_rules *r, size_t *pos);

#endif
