/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the rule for each parameter: DeepSpeed 0.19.8, checkpoint/ds_to_universal.py
 * merge_tp_slices.
 *
 * universal_checkpoint_info has lists of regular expressions, which Python's re.match matches from
 * the start of the name; PCRE2 understands that dialect.  The lists are tried in the converter's
 * order. As in the converter, a name that two patterns of one list match is an error.
 */
#include "ckpt/table/merge_rules.h"

#define PCRE2_CODE_UNIT_WIDTH 8

#include <assert.h>
#include <errno.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/value.h"

#define PATTERNS_MAX 4096
#define PATTERN_LEN_MAX 4096

/* The checkpoint's rules, a preset and a file. */
#define LEVELS_MAX 3

/* Limit of the copy of the lists. */
#define INFO_MEMORY_MAX (256u << 20)

/* Limit of the steps of one match: far more than a parameter name needs, and
 * soon reached by a pattern made to explode. */
#define MATCH_LIMIT 100000

/* Plain lists of patterns that give a rule come first, in the order in which the
 * converter tries them, then other plain lists. */
enum list {
	LIST_REPLICATED,
	LIST_AVERAGE,
	LIST_TWO_SUB_PARAMS,
	LIST_THREE_SUB_PARAMS,
	LIST_COLUMN_PARALLEL,
	LIST_ROW_PARALLEL,
	LIST_VOCABULARY,
	LIST_PIPELINE,
	LIST_SUB_PARAMS,
	LIST_AFFINE,
};

/* The key of each list in universal_checkpoint_info. */
static const struct {
	const char *key;
	enum merge_rule rule;
	bool users_alone; /* only users may give it; the checkpoint's is ignored */
} lists[] = {
	[LIST_REPLICATED] = { .key = "tp_replicated_parameter_patterns", .rule = MERGE_REPLICATED },
	[LIST_AVERAGE] = { .key = "parameter_to_average_patterns", .rule = MERGE_AVERAGE },
	[LIST_TWO_SUB_PARAMS] = { .key = "parameter_with_2_sub_params_cat_dim_0",
				  .rule = MERGE_TWO_SUB_PARAMS },
	[LIST_THREE_SUB_PARAMS] = { .key = MERGE_RULES_THREE,
				    .rule = MERGE_THREE_SUB_PARAMS,
				    .users_alone = true },
	[LIST_COLUMN_PARALLEL] = { .key = MERGE_RULES_COLUMN, .rule = MERGE_CAT, .users_alone = true },
	[LIST_ROW_PARALLEL] = { .key = "parameter_with_row_parallelism_patterns", .rule = MERGE_CAT },
	[LIST_VOCABULARY] = { .key = "vocabulary_parameter_patterns" },
	[LIST_PIPELINE] = { .key = "pipeline_replicated_parameter_patterns" },
	[LIST_SUB_PARAMS] = { .key = "parameter_with_sub_params", .rule = MERGE_SUB_PARAMS },
};

#define KEY_VOCAB_ROWS "original_vocab_size"
#define KEY_WIDTHS "sub_param_shard_widths"

struct pattern {
	enum list list;
	unsigned level;
	char *text;
	pcre2_code *code;
	const struct value *spec; /* for sub-parameters and affine maps */
	bool used;
	bool presumed; /* not matching any parameter is no error */
};

struct merge_rules {
	struct pattern *v;
	size_t n, cap;
	struct arena arena; /* owns the memory that specs point to */
	/* The checkpoint's info is level 0; the user's are above. NULL: none. */
	const struct value *info[LEVELS_MAX];
	unsigned level;     /* highest level in use */
	bool has_default;
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
		[MERGE_THREE_SUB_PARAMS] = "three_sub_params",
		[MERGE_SUB_PARAMS] = "sub_params",
		[MERGE_AFFINE] = "affine",
		[MERGE_EXPERTS] = "experts",
	};

	return names[rule];
}

unsigned merge_rule_parts(enum merge_rule rule)
{
	return rule == MERGE_TWO_SUB_PARAMS ? 2 : rule == MERGE_THREE_SUB_PARAMS ? 3 : 1;
}

/* Reads one level. */
struct reader {
	struct merge_rules *r;
	bool presumed;
	const char *file;
	struct errmsg *err;
};

static int add_pattern(const struct reader *x, enum list list, const struct value *v,
		       const struct value *spec)
{
	struct merge_rules *r = x->r;
	PCRE2_UCHAR why[128];
	PCRE2_SIZE at;
	int code;

	if (!value_is_cstr(v) || v->str.len > PATTERN_LEN_MAX || r->n == PATTERNS_MAX)
		return ERRMSG_FILE(x, -EBADMSG,
		"universal_checkpoint_info: a pattern is not a string, too long, or one too many");
	if (!array_reserve(&r->v, &r->cap, r->n + 1, sizeof(*r->v)))
		return errmsg_nomem(x->err, x->file);
	r->v[r->n] = (struct pattern){
		.list = list,
		.level = r->level,
		.presumed = x->presumed,
		.spec = spec,
		.text = strdup(v->str.p),
		.code = pcre2_compile((PCRE2_SPTR)v->str.p, v->str.len, PCRE2_UTF | PCRE2_ANCHORED,
				      &code, &at, NULL),
	};
	if (!r->v[r->n++].code) {
		pcre2_get_error_message(code, why, sizeof(why));
		return ERRMSG_FILE(x, -EBADMSG, "universal_checkpoint_info: pattern '%.100s': %s",
				   v->str.p, (const char *)why);
	}
	return 0;
}

static int add_list(const struct reader *x, enum list list, const struct value *v,
		    const struct value *spec)
{
	const struct value_seq *items = value_items(v);
	int rc = 0;

	if (!v || v->kind == VALUE_NONE)
		return 0;
	if (!items)
		return ERRMSG_FILE(x, -EBADMSG,
				"universal_checkpoint_info: expected a list of patterns, found %s",
				   value_kind_name(v));
	for (size_t i = 0; !rc && i < items->n; i++)
		rc = add_pattern(x, list, items->v[i], spec);
	return rc;
}

/* Add sub-parameters and affine maps, which are not plain lists. */
static int add_structured(const struct reader *x)
{
	const struct value *info = x->r->info[x->r->level];
	const struct value_seq *subs = value_find_items(info, lists[LIST_SUB_PARAMS].key);
	const struct value_dict *affine = value_find_pairs(value_find(info, "affine_map"), "params");
	int rc = 0;

	for (size_t i = 0; !rc && subs && i < subs->n; i++)
		rc = add_list(x, LIST_SUB_PARAMS, value_find(subs->v[i], "patterns"), subs->v[i]);
	for (size_t i = 0; !rc && affine && i < affine->n; i++)
		rc = add_pattern(x, LIST_AFFINE, affine->v[i].key, affine->v[i].val);
	return rc;
}

/* Refuse rules that the checkpoint's author or version excludes. */
static int check_info(const struct reader *x)
{
	const struct value *info = x->r->info[0];
	const struct value_dict *refused =
		value_find_pairs(info, "autotp_unsupported_parameter_patterns");
	int64_t version;

	if (refused && refused->n)
		return ERRMSG_FILE(x, -ENOTSUP,
		"universal_checkpoint_info says that parameters '%.100s' cannot be converted",
				   value_cstr(refused->v[0].key));
	if (value_get_int(value_find_path(info, "affine_map", "version", NULL), &version) &&
	    version > 1)
		return ERRMSG_FILE(x, -ENOTSUP, "affine maps of version %lld: only 1 is known",
				   (long long)version);
	return 0;
}

/* Add the lists of the highest level. */
static int add_level(const struct reader *x, const struct value *info)
{
	struct merge_rules *r = x->r;
	const struct value **copy = &r->info[r->level];
	uint64_t rows;
	int rc = 0;

	if (!value_pairs(info))
		return 0;
	r->has_default |= !r->level || x->presumed;
	*copy = pickle_copy(&r->arena, info);
	if (!*copy)
		return ERRMSG_FILE(x, -E2BIG,
				   "universal_checkpoint_info is nested too deeply or too large");
	if (value_get_count(value_find(*copy, KEY_VOCAB_ROWS), &rows))
		r->vocab_rows = (int64_t)rows;
	if (r->level == 0)
		rc = check_info(x);
	for (int l = 0; !rc && l <= LIST_PIPELINE; l++)
		if (r->level > 0 || !lists[l].users_alone)
			rc = add_list(x, (enum list)l, value_find(*copy, lists[l].key), NULL);
	return rc ?: add_structured(x);
}

int merge_rules_new(const struct value *info, const char *file, struct merge_rules **out,
		    struct errmsg *err)
{
	struct merge_rules *r = calloc(1, sizeof(*r));
	int rc;

	if (r) {
		r->match = pcre2_match_data_create(1, NULL);
		r->limits = pcre2_match_context_create(NULL);
	}
	if (!r || !r->match || !r->limits) {
		merge_rules_free(r);
		return errmsg_nomem(err, file);
	}
	pcre2_set_match_limit(r->limits, MATCH_LIMIT);
	r->arena.limit = INFO_MEMORY_MAX;
	r->vocab_rows = -1;
	rc = add_level(&(struct reader){ r, false, file, err }, info);
	if (rc)
		merge_rules_free(r);
	else
		*out = r;
	return rc;
}

int merge_rules_override(struct merge_rules *r, const struct value *info, const char *file,
			 bool presumed, struct errmsg *err)
{
	r->level++;
	assert(r->level < LEVELS_MAX);
	return add_level(&(struct reader){ r, presumed, file, err }, info);
}

bool merge_rules_have_default(const struct merge_rules *r)
{
	return r->has_default;
}

bool merge_rules_knows(const char *key)
{
	for (size_t l = 0; l < COUNT(lists); l++)
		if (strcmp(key, lists[l].key) == 0)
			return true;
	return strcmp(key, KEY_VOCAB_ROWS) == 0 || strcmp(key, KEY_WIDTHS) == 0;
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
	arena_done(&r->arena);
	pcre2_match_data_free(r->match);
	pcre2_match_context_free(r->limits);
	free(r);
}

static int match_fail(const struct pattern *p, const char *name, int rc, struct errmsg *err)
{
	PCRE2_UCHAR why[128];

	if (rc == PCRE2_ERROR_MATCHLIMIT)
		return errmsg_set(err, -EBADMSG,
		"parameter %s: gave up on pattern '%.100s' after %d steps: it can match in too many"
				  " ways, as nested repetitions do",
				  name, p->text, MATCH_LIMIT);
	pcre2_get_error_message(rc, why, sizeof(why));
	return errmsg_set(err, -EBADMSG, "parameter %s: pattern '%.100s' cannot be matched: %s",
			  name, p->text, (const char *)why);
}

/* Match a name against `list` of one level: 1 and the pattern if exactly one
 * matches, 0 if none does, an error if several do. (For sub-parameters the
 * converter takes the first match.) */
static int match_list(struct merge_rules *r, unsigned level, enum list list, const char *name,
		      const struct pattern **hit, struct errmsg *err)
{
	const struct pattern *first = NULL;

	for (size_t i = 0; i < r->n; i++) {
		struct pattern *p = &r->v[i];
		int rc;

		if (p->list != list || p->level != level)
			continue;
		rc = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, 0, r->match, r->limits);
		if (rc == PCRE2_ERROR_NOMATCH)
			continue;
		if (rc < 0)
			return match_fail(p, name, rc, err);
		p->used = true;
		if (first && (list == LIST_SUB_PARAMS || list == LIST_PIPELINE))
			continue;
		if (first)
			return errmsg_set(err, -EBADMSG,
					"parameter %s: matches two patterns: '%.100s' and '%.100s'",
					  name, first->text, p->text);
		first = p;
	}
	if (hit)
		*hit = first;
	return first != NULL;
}

/* As match_list, in the highest level that has a match. */
static int match_levels(struct merge_rules *r, enum list list, const char *name, struct errmsg *err)
{
	int hit = 0;

	for (unsigned level = r->level + 1; !hit && level-- > 0;)
		hit = match_list(r, level, list, name, NULL, err);
	return hit;
}

static int match_vocab(struct merge_rules *r, const char *name, struct merge *m, struct errmsg *err)
{
	const int hit = match_levels(r, LIST_VOCABULARY, name, err);

	if (hit <= 0)
		return hit;
	if (r->vocab_rows < 0)
		return errmsg_set(err, -EBADMSG,
		"parameter %s: is a vocabulary parameter, but original_vocab_size is missing",
				  name);
	m->vocab = true;
	m->vocab_rows = (uint64_t)r->vocab_rows;
	return 0;
}

/* Mark lists without effect as used where they match: other lists take precedence, and
 * contradictions in them do not matter. */
static void mark_superseded(struct merge_rules *r, unsigned level, const char *name)
{
	for (int l = 0; l <= LIST_AFFINE; l++)
		if (l != LIST_VOCABULARY && l != LIST_PIPELINE)
			(void)match_list(r, level, (enum list)l, name, NULL, NULL);
}

/* Widths of the shards are recorded from version 0.4 on.  Before, they were always equal, which
 * is also the default for the user's rules. */
static int set_sub_params(const struct merge_rules *r, const char *name, const struct pattern *p,
			  struct merge *m, struct errmsg *err)
{
	const struct value *info = r->info[p->level];
	const struct value *version = value_find(info, "universal_checkpoint_version");
	const bool recorded = version && version->kind == VALUE_FLOAT && version->f >= 0.4;

	m->rule = MERGE_SUB_PARAMS;
	m->spec = p->spec;
	if (recorded || p->level > 0)
		m->widths = value_find(value_find(info, KEY_WIDTHS), p->text);
	if (m->widths || !recorded)
		return 1;
	return errmsg_set(err, -EBADMSG,
		"parameter %s: sub_param_shard_widths has no entry for its pattern '%.100s'",
			  name, p->text);
}

/* Apply the first list of a level, in the converter's order, that matches the name.  Returns 1, 0
 * if none does, or an error. */
static int match_level(struct merge_rules *r, unsigned level, const char *name, struct merge *m,
		       struct errmsg *err)
{
	const struct pattern *affine = NULL, *sub = NULL;
	int hit = match_list(r, level, LIST_AFFINE, name, &affine, err);

	if (hit >= 0)
		hit = match_list(r, level, LIST_SUB_PARAMS, name, &sub, err);
	if (hit < 0)
		return hit;
	if (affine) {
		m->rule = MERGE_AFFINE;
		m->spec = affine->spec;
		mark_superseded(r, level, name);
		return 1;
	}
	for (int l = 0; l <= LIST_COLUMN_PARALLEL; l++) {
		hit = match_list(r, level, (enum list)l, name, NULL, err);
		if (hit > 0)
			m->rule = lists[l].rule;
		if (hit)
			return hit;
	}
	if (sub)
		return set_sub_params(r, name, sub, m, err);
	hit = match_list(r, level, LIST_ROW_PARALLEL, name, NULL, err);
	m->dim = hit > 0;
	return hit;
}

int merge_rules_match(struct merge_rules *r, const char *name, struct merge *out, struct errmsg *err)
{
	struct merge m = { .rule = MERGE_CAT };
	unsigned level = r->level + 1;
	int rc = 0;

	while (!rc && level-- > 0)
		rc = match_level(r, level, name, &m, err);
	if (rc < 0)
		return rc;
	m.from_user = rc && level > 0;
	while (m.from_user && level-- > 0)
		mark_superseded(r, level, name);
	assert(!m.spec == (m.rule != MERGE_AFFINE && m.rule != MERGE_SUB_PARAMS));
	rc = match_vocab(r, name, &m, err);
	if (!rc)
		*out = m;
	return rc;
}

int merge_is_pipeline_replica(struct merge_rules *r, const char *name, struct errmsg *err)
{
	/* Several patterns of this list may match (any() in the converter). */
	return match_levels(r, LIST_PIPELINE, name, err);
}

const char *merge_rules_next_unused(const struct merge_rules *r, size_t *pos)
{
	while (*pos < r->n) {
		const struct pattern *p = &r->v[(*pos)++];

		if (!p->used && !p->presumed && p->list != LIST_AFFINE && p->list != LIST_PIPELINE)
			return p->text;
	}
	return NULL;
}
