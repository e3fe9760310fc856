/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rule applies to which parameter: DeepSpeed 0.19.8,
 * checkpoint/ds_to_universal.py merge_tp_slices.
 *
 * The checkpoint's author declares lists of regular expressions, matched from
 * the start of the name with Python's re.match; PCRE2 understands that
 * dialect.  The lists are consulted in the converter's order, and a name that
 * two patterns of one list match is an error there and here.
 */
#include "ckpt/merge.h"

#define PCRE2_CODE_UNIT_WIDTH 8

#include <errno.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/errmsg.h"
#include "ckpt/value.h"

#define PATTERNS_MAX 4096
#define PATTERN_LEN_MAX 4096

/* Steps that one match may take: far beyond what matching a parameter name
 * needs, and soon reached by a pattern made to explode. */
#define MATCH_LIMIT 100000

enum list {
	LIST_REPLICATED,
	LIST_AVERAGE,
	LIST_TWO_SUB_PARAMS,
	LIST_ROW_PARALLEL,
	LIST_VOCABULARY,
	LIST_SUB_PARAMS,
	LIST_AFFINE,
};

static const char *const list_keys[] = {
	[LIST_REPLICATED] = "tp_replicated_parameter_patterns",
	[LIST_AVERAGE] = "parameter_to_average_patterns",
	[LIST_TWO_SUB_PARAMS] = "parameter_with_2_sub_params_cat_dim_0",
	[LIST_ROW_PARALLEL] = "parameter_with_row_parallelism_patterns",
	[LIST_VOCABULARY] = "vocabulary_parameter_patterns",
};

struct pattern {
	enum list list;
	char *text;
	pcre2_code *code;
	bool used;
};

struct merge_rules {
	struct pattern *v;
	size_t n;
	int64_t vocab_rows; /* original_vocab_size, or -1 */
	pcre2_match_data *match;
	pcre2_match_context *limits;
};

const char *merge_rule_name(enum merge_rule rule)
{
	static const char *const names[] = {
		[MERGE_CAT] = "concatenate",
		[MERGE_REPLICATED] = "replicated",
		[MERGE_AVERAGE] = "average",
		[MERGE_TWO_SUB_PARAMS] = "two_sub_params",
	};

	return names[rule];
}

static int add_pattern(struct merge_rules *r, enum list list,
		       const struct value *v, const char *file,
		       struct errmsg *err)
{
	PCRE2_UCHAR why[128];
	PCRE2_SIZE at;
	int code;

	if (!value_is_cstr(v) || v->str.len > PATTERN_LEN_MAX ||
	    r->n == PATTERNS_MAX)
		return errmsg_set(err, -EBADMSG,
				  "%s: universal_checkpoint_info: a pattern is"
				  " no string, too long, or one too many", file);

	void *const grown = realloc(r->v, (r->n + 1) * sizeof(*r->v));

	if (!grown)
		return errmsg_set(err, -ENOMEM, "%s: out of memory", file);
	r->v = grown;
	r->v[r->n] = (struct pattern){
		.list = list,
		.text = strdup(v->str.p),
		.code = pcre2_compile((PCRE2_SPTR)v->str.p, v->str.len,
				      PCRE2_UTF | PCRE2_ANCHORED, &code, &at,
				      NULL),
	};
	if (!r->v[r->n++].code) {
		pcre2_get_error_message(code, why, sizeof(why));
		return errmsg_set(err, -EBADMSG,
				  "%s: universal_checkpoint_info: pattern"
				  " '%.100s': %s", file, v->str.p,
				  (const char *)why);
	}
	return 0;
}

static int add_list(struct merge_rules *r, enum list list,
		    const struct value *v, const char *file,
		    struct errmsg *err)
{
	const struct value_seq *const items = value_items(v);

	if (!v || v->kind == VALUE_NONE)
		return 0;
	if (!items)
		return errmsg_set(err, -EBADMSG,
				  "%s: universal_checkpoint_info: expected a"
				  " list of patterns, found %s", file,
				  value_kind_name(v));
	for (size_t i = 0; i < items->n; i++) {
		const int rc = add_pattern(r, list, items->v[i], file, err);

		if (rc)
			return rc;
	}
	return 0;
}

/* The two forms that are not plain lists; their patterns are kept so that a
 * parameter that needs them is refused by name. */
static int add_structured(struct merge_rules *r, const struct value *info,
			  const char *file, struct errmsg *err)
{
	const struct value_seq *const subs =
		value_items(value_find(info, "parameter_with_sub_params"));
	const struct value_dict *const affine = value_pairs(
		value_find_path(info, "affine_map", "params", NULL));
	int rc = 0;

	for (size_t i = 0; !rc && subs && i < subs->n; i++)
		rc = add_list(r, LIST_SUB_PARAMS,
			      value_find(subs->v[i], "patterns"), file, err);
	for (size_t i = 0; !rc && affine && i < affine->n; i++)
		rc = add_pattern(r, LIST_AFFINE, affine->v[i].key, file, err);
	return rc;
}

int merge_rules_new(const struct value *info, const char *file,
		    struct merge_rules **out, struct errmsg *err)
{
	struct merge_rules *const r = calloc(1, sizeof(*r));
	int64_t rows;
	int rc = 0;

	if (r) {
		r->match = pcre2_match_data_create(1, NULL);
		r->limits = pcre2_match_context_create(NULL);
	}
	if (!r || !r->match || !r->limits) {
		merge_rules_free(r);
		return errmsg_set(err, -ENOMEM, "%s: out of memory", file);
	}
	pcre2_set_match_limit(r->limits, MATCH_LIMIT);
	r->vocab_rows = value_get_int(value_find(info, "original_vocab_size"),
				      &rows) && rows >= 0 ? rows : -1;
	for (int l = 0; !rc && l <= LIST_VOCABULARY; l++)
		rc = add_list(r, (enum list)l, value_find(info, list_keys[l]),
			      file, err);
	if (!rc)
		rc = add_structured(r, info, file, err);
	if (rc)
		merge_rules_free(r);
	else
		*out = r;
	return rc;
}

void merge_rules_free(struct merge_rules *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < r->n; i++) {
		free(r->v[i].text);
		pcre2_code_free(r->v[i].code);
	}
	free(r->v);
	pcre2_match_data_free(r->match);
	pcre2_match_context_free(r->limits);
	free(r);
}

/* Does exactly one pattern of `list` match?  Then 1; 0 if none does. */
static int match_list(struct merge_rules *r, enum list list, const char *name,
		      struct errmsg *err)
{
	const struct pattern *first = NULL;

	for (size_t i = 0; i < r->n; i++) {
		struct pattern *const p = &r->v[i];
		int rc;

		if (p->list != list)
			continue;
		rc = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, 0,
				 r->match, r->limits);
		if (rc == PCRE2_ERROR_NOMATCH)
			continue;
		if (rc < 0)
			return errmsg_set(err, -EBADMSG,
					  "parameter %s: pattern '%.100s' cannot"
					  " be matched (error %d)", name,
					  p->text, rc);
		p->used = true;
		if (first)
			return errmsg_set(err, -EBADMSG,
					  "parameter %s: matches two patterns:"
					  " '%.100s' and '%.100s'", name,
					  first->text, p->text);
		first = p;
	}
	return first != NULL;
}

static int match_vocab(struct merge_rules *r, const char *name,
		       const uint64_t *shape, unsigned ndim, struct merge *m,
		       struct errmsg *err)
{
	const int hit = match_list(r, LIST_VOCABULARY, name, err);

	if (hit <= 0)
		return hit;
	if (ndim != 2 || r->vocab_rows < 0)
		return errmsg_set(err, -EBADMSG,
				  "parameter %s: is a vocabulary parameter, but"
				  " has %u dimensions and original_vocab_size is"
				  " %s", name, ndim,
				  r->vocab_rows < 0 ? "missing" : "there");
	m->vocab = true;
	/* Python's slice [:n] stops at the last row. */
	m->vocab_rows = (uint64_t)r->vocab_rows < shape[0] ?
				(uint64_t)r->vocab_rows :
				shape[0];
	return 0;
}

int merge_match(struct merge_rules *r, const char *name, const uint64_t *shape,
		unsigned ndim, struct merge *out, struct errmsg *err)
{
	static const struct {
		enum list list;
		enum merge_rule rule;
	} order[] = {
		{ LIST_REPLICATED, MERGE_REPLICATED },
		{ LIST_AVERAGE, MERGE_AVERAGE },
		{ LIST_TWO_SUB_PARAMS, MERGE_TWO_SUB_PARAMS },
	};
	struct merge m = { .rule = MERGE_CAT };
	int hit = 0;

	for (int l = LIST_SUB_PARAMS; l <= LIST_AFFINE; l++) {
		hit = match_list(r, (enum list)l, name, err);
		if (hit)
			return hit < 0 ? hit :
					 errmsg_set(err, -ENOTSUP,
						    "parameter %s: sub-parameter"
						    " shapes and affine maps are"
						    " not supported yet", name);
	}
	for (size_t i = 0; !hit && i < sizeof(order) / sizeof(*order); i++) {
		hit = match_list(r, order[i].list, name, err);
		if (hit > 0)
			m.rule = order[i].rule;
	}
	if (!hit) {
		hit = match_list(r, LIST_ROW_PARALLEL, name, err);
		m.dim = hit > 0;
	}
	if (hit >= 0)
		hit = match_vocab(r, name, shape, ndim, &m, err);
	if (hit < 0)
		return hit;
	*out = m;
	return 0;
}

const char *merge_next_unused(const struct merge_rules *r, size_t *pos)
{
	while (*pos < r->n) {
		const struct pattern *const p = &r->v[(*pos)++];

		if (!p->used && p->list != LIST_AFFINE)
			return p->text;
	}
	return NULL;
}
