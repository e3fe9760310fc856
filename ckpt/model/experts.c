/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MoE layers, as DeepSpeed records them (runtime/engine.py
 * _save_moe_checkpoint):
 *
 *   num_experts		of each MoE layer, in the order of the model
 *   ds_autoep_layers	a dict for each layer that AutoEP made, or None; see
 *			experts_autoep.c
 *   ds_config.use_data_before_expert_parallelism
 *
 * For native layers nothing else is recorded; the rest follows from the names of
 * their expert files and the keys in them.
 */
#include "ckpt/model/experts.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/model/experts_impl.h"
#include "ckpt/pickle/value.h"

#define NATIVE_MARK ".deepspeed_moe.experts.deepspeed_experts."

/* --- all layers -------------------------------------------------------------- */

static int read_counts(struct experts *x, struct arena *a,
		       const struct value_seq *counts, const char *file,
		       struct errmsg *err)
{
	unsigned total = 0;

	if (counts->n > EXPERTS_LAYERS_MAX)
		return errmsg_set(err, -E2BIG, "%s: %zu MoE layers", file,
				  counts->n);
	x->n = counts->n;
	x->layers = arena_alloc(a, (x->n + 1) * sizeof(*x->layers));
	if (!x->layers)
		return errmsg_nomem(err, file);
	for (size_t i = 0; i < x->n; i++) {
		int64_t n;

		if (!value_get_int(counts->v[i], &n) || n < 1)
			return errmsg_set(err, -EBADMSG,
					  "%s: num_experts[%zu] is not a number of"
					  " experts", file, i);
		if (n > (int64_t)(EXPERTS_MAX - total))
			return errmsg_set(err, -E2BIG,
					  "%s: more than %u experts", file,
					  EXPERTS_MAX);
		x->layers[i].n = (unsigned)n;
		total += (unsigned)n;
	}
	return 0;
}

int experts_init(struct experts *x, struct arena *a, const struct value *root,
		 bool zero3, const char *file, struct errmsg *err)
{
	const struct value_seq *const counts =
		value_find_items(root, "num_experts");
	const struct value *list = value_find(root, "ds_autoep_layers");
	int rc = 0;

	*x = (struct experts){ .data_first = value_is_true(value_find_path(
				       root, KEY_DS_CONFIG,
				       "use_data_before_expert_parallelism",
				       NULL)) };
	if (counts)
		rc = read_counts(x, a, counts, file, err);
	if (!list)
		list = value_find(root, "autoep_layers"); /* the key in older
							   * files */
	if (rc || !list || list->kind == VALUE_NONE)
		return rc;
	if (!value_items(list) || !x->n)
		return errmsg_set(err, -EBADMSG,
				  "%s: ds_autoep_layers is a %s, num_experts"
				  " counts %zu layers",
				  file, value_kind_name(list), x->n);
	return experts_read_autoep(x, a, value_items(list), zero3, file, err);
}

static bool layers_equal(const struct expert_layer *a,
			 const struct expert_layer *b)
{
	if (a->n != b->n || a->fused != b->fused)
		return false;
	return !a->fused ||
	       (a->local == b->local && strcmp(a->prefix, b->prefix) == 0 &&
		memcmp(a->places, b->places, a->n * sizeof(*a->places)) == 0);
}

bool experts_equal(const struct experts *a, const struct experts *b)
{
	bool equal = a->n == b->n && a->data_first == b->data_first;

	for (size_t i = 0; equal && i < a->n; i++)
		equal = layers_equal(&a->layers[i], &b->layers[i]);
	return equal;
}

unsigned experts_degree(const struct expert_layer *l)
{
	assert(!l->local || l->n % l->local == 0);
	return l->local ? l->n / l->local : 1;
}

/* --- names ------------------------------------------------------------------- */

/* Skip the decimal number at `*s`, which has no leading zeros. */
static bool skip_number(const char **s, unsigned *out)
{
	const char *const begin = *s;
	unsigned v = 0;

	for (; isdigit((unsigned char)**s); (*s)++) {
		v = v * 10 + (unsigned)(**s - '0');
		if (v >= EXPERTS_MAX)
			return false;
	}
	*out = v;
	return *s > begin && (*begin != '0' || *s == begin + 1);
}

bool experts_is_native(const char *name)
{
	return strstr(name, NATIVE_MARK) != NULL;
}

bool experts_parse(const struct expert_layer *l, const char *name,
		   unsigned *expert, const char **rest)
{
	const size_t n = strlen(l->prefix);

	if (strncmp(name, l->prefix, n) != 0 ||
	    strlen(name) >= EXPERT_NAME_MAX - 16)
		return false;
	*rest = name + n;
	*expert = 0;
	if (l->fused)
		return strcmp(*rest, ".w1") == 0 || strcmp(*rest, ".w2") == 0 ||
		       strcmp(*rest, ".w3") == 0;
	return skip_number(rest, expert) && **rest == '.';
}

void experts_key(const struct expert_layer *l, unsigned expert,
		 const char *rest, char *out)
{
	if (l->fused)
		snprintf(out, EXPERT_NAME_MAX, "%s%s.%u", l->prefix, rest,
			 expert);
	else
		snprintf(out, EXPERT_NAME_MAX, "%s%u%s", l->prefix, expert,
			 rest);
}

const char *experts_find_prefix(struct arena *a, const char *key,
				unsigned expert, bool *nomem)
{
	const char *end = NULL, *s = key;
	const char *prefix;
	unsigned number;

	*nomem = false;
	/* The last mark counts: an expert may itself be a model with
	 * experts. */
	while ((s = strstr(s, NATIVE_MARK))) {
		s += strlen(NATIVE_MARK);
		end = s;
	}
	if (!end || strlen(key) >= EXPERT_NAME_MAX - 16)
		return NULL;
	s = end;
	if (!skip_number(&s, &number) || number != expert || *s != '.')
		return NULL;
	prefix = arena_strndup(a, key, (size_t)(end - key));
	*nomem = !prefix;
	return prefix;
}
