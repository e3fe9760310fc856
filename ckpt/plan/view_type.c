/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/plan/view_type.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/reshard/reshard.h"

static const struct {
	const char *name, *suffix;
} kinds[PLAN_KINDS] = {
	[PLAN_UNIVERSAL] = { "universal", "_universal" },
	[PLAN_HF] = { "hf", "_hf" },
	[PLAN_FP32] = { "fp32", "_fp32" },
	[PLAN_DCP] = { "dcp", "_dcp" },
	[PLAN_RESHARD] = { "zero", "_dp" },
};

bool view_type_parse_kind(const char *text, enum plan_kind *out)
{
	for (int kind = 0; kind < PLAN_KINDS; kind++)
		if (strcmp(text, kinds[kind].name) == 0) {
			*out = (enum plan_kind)kind;
			return true;
		}
	return false;
}

bool view_type_equal(const struct view_type *a, const struct view_type *b)
{
	return a->kind == b->kind && a->ranks == b->ranks &&
	       a->stage == b->stage;
}

void view_type_suffix(const struct view_type *t, char suffix[VIEW_SUFFIX_MAX])
{
	const char *const text = kinds[t->kind].suffix;

	if (t->kind != PLAN_RESHARD)
		snprintf(suffix, VIEW_SUFFIX_MAX, "%s", text);
	else if (t->stage)
		snprintf(suffix, VIEW_SUFFIX_MAX, "%s%u_z%u", text, t->ranks,
			 t->stage);
	else
		snprintf(suffix, VIEW_SUFFIX_MAX, "%s%u", text, t->ranks);
}

bool view_type_parse_ranks(const char *text, struct view_type *out)
{
	struct view_type t = { .kind = PLAN_RESHARD };
	size_t n = 0;

	/* Each view has a single name, hence no leading zeros. */
	for (; text[n] >= '0' && text[n] <= '9' && n < 5; n++)
		t.ranks = 10 * t.ranks + (unsigned)(text[n] - '0');
	if (n == 0 || text[0] == '0' || t.ranks > RESHARD_RANKS_MAX)
		return false;
	if (strncmp(text + n, "_z", 2) == 0 && text[n + 2] >= '1' &&
	    text[n + 2] <= '3') {
		t.stage = (unsigned)(text[n + 2] - '0');
		n += 3;
	}
	if (text[n])
		return false;
	*out = t;
	return true;
}

bool view_type_parse(const char *name, size_t *tag_len, struct view_type *out)
{
	const size_t len = strlen(name);
	const char *at = NULL;

	for (int kind = 0; kind < VIEW_KINDS; kind++) {
		const size_t n = strlen(kinds[kind].suffix);

		if (len <= n || strcmp(name + len - n, kinds[kind].suffix) != 0)
			continue;
		*out = (struct view_type){ .kind = (enum plan_kind)kind };
		*tag_len = len - n;
		return true;
	}
	/* A tag's name may contain "_dp", too: find the last one. */
	for (const char *p = name; (p = strstr(p, "_dp")); p++)
		at = p;
	if (!at || at == name || !view_type_parse_ranks(at + 3, out))
		return false;
	*tag_len = (size_t)(at - name);
	return true;
}
