/* SPDX-License-Identifier: Apache-2.0 */
/* Names of views. */
#include "fs/tree/view_type.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/reshard/reshard.h"

#define STAGE_SHIFT 13

_Static_assert(RESHARD_RANKS_MAX < 1u << STAGE_SHIFT,
	       "ranks must fit below the stage");
_Static_assert(3u << STAGE_SHIFT < 1u << VIEW_TYPE_BITS, "all stages must fit");

static const char *const suffixes[VIEW_KINDS] = {
	[PLAN_UNIVERSAL] = "_universal",
	[PLAN_HF] = "_hf",
	[PLAN_FP32] = "_fp32",
};

bool view_type_equal(const struct view_type *a, const struct view_type *b)
{
	return a->kind == b->kind && a->ranks == b->ranks &&
	       a->stage == b->stage;
}

void view_type_suffix(const struct view_type *t, char suffix[VIEW_SUFFIX_MAX])
{
	if (t->kind != PLAN_RESHARD)
		snprintf(suffix, VIEW_SUFFIX_MAX, "%s", suffixes[t->kind]);
	else if (t->stage)
		snprintf(suffix, VIEW_SUFFIX_MAX, "_dp%u_z%u", t->ranks,
			 t->stage);
	else
		snprintf(suffix, VIEW_SUFFIX_MAX, "_dp%u", t->ranks);
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

static bool has_suffix(const char *name, const char *suffix, size_t *tag_len)
{
	const size_t n = strlen(name), s = strlen(suffix);

	if (n <= s || strcmp(name + n - s, suffix) != 0)
		return false;
	*tag_len = n - s;
	return true;
}

bool view_type_parse(const char *name, size_t *tag_len, struct view_type *out)
{
	const char *at = NULL;

	for (int kind = 0; kind < VIEW_KINDS; kind++)
		if (has_suffix(name, suffixes[kind], tag_len)) {
			*out = (struct view_type){ .kind =
							   (enum plan_kind)kind };
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

unsigned view_type_number(const struct view_type *t)
{
	assert(t->ranks <= RESHARD_RANKS_MAX && t->stage <= 3);
	return t->kind == PLAN_RESHARD ? t->stage << STAGE_SHIFT | t->ranks : 0;
}

struct view_type view_type_of_number(unsigned number)
{
	if (!number)
		return (struct view_type){ .kind = PLAN_UNIVERSAL };
	return (struct view_type){
		.kind = PLAN_RESHARD,
		.ranks = number & ((1u << STAGE_SHIFT) - 1),
		.stage = number >> STAGE_SHIFT,
	};
}
