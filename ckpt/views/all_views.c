/* SPDX-License-Identifier: Apache-2.0 */
/* The list of views, and their names. */
#include "ckpt/views/all_views.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/views/view_impl.h"
#include "ckpt/views/recut.h"

const struct view_ops *const all_views[VIEW_KINDS] = {
	[VIEW_UNIVERSAL] = &view_universal, [VIEW_HF] = &view_hf,
	[VIEW_FP32] = &view_fp32,           [VIEW_DCP] = &view_dcp,
	[VIEW_RECUT] = &view_recut,
};

void view_type_list(unsigned takes, const char *prefix, char out[VIEW_LIST_MAX])
{
	const char *names[VIEW_KINDS];
	int n = 0, len = 0;

	for (int kind = 0; kind < VIEW_KINDS; kind++)
		if (!takes || all_views[kind]->takes & takes)
			names[n++] = all_views[kind]->option;
	for (int i = 0; i < n; i++)
		len += snprintf(out + len, VIEW_LIST_MAX - (size_t)len, "%s%s%s",
				!i ? "" : i < n - 1 ? ", " : " or ", prefix, names[i]);
}

bool view_type_parse_kind(const char *text, enum view_kind *out)
{
	for (int kind = 0; kind < VIEW_KINDS; kind++)
		if (strcmp(text, all_views[kind]->option) == 0) {
			*out = (enum view_kind)kind;
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
	int n = snprintf(suffix, VIEW_SUFFIX_MAX, "%s", all_views[t->kind]->suffix);

	if (t->ranks)
		n += snprintf(suffix + n, VIEW_SUFFIX_MAX - (size_t)n, "%u", t->ranks);
	if (t->stage)
		snprintf(suffix + n, VIEW_SUFFIX_MAX - (size_t)n, "_z%u", t->stage);
}

bool view_type_parse_ranks(const char *text, struct view_type *out)
{
	struct view_type t = { .kind = VIEW_RECUT };
	size_t n = 0;

	/* Each view has a single name, hence no leading zeros. */
	for (; text[n] >= '0' && text[n] <= '9' && n < 5; n++)
		t.ranks = 10 * t.ranks + (unsigned)(text[n] - '0');
	if (n == 0 || text[0] == '0' || t.ranks > RECUT_RANKS_MAX)
		return false;
	if (strncmp(text + n, "_z", 2) == 0 && text[n + 2] >= '1' && text[n + 2] <= '3') {
		t.stage = (unsigned)(text[n + 2] - '0');
		n += 3;
	}
	if (text[n])
		return false;
	*out = t;
	return true;
}

/* Parse the rest of a name after the suffix of a kind. */
static bool parse_rest(enum view_kind kind, const char *text, struct view_type *out)
{
	const struct view_ops *v = all_views[kind];

	*out = (struct view_type){ .kind = kind };
	if (!*text)
		return !(v->takes & TAKES_RANKS);
	if (!v->ranked || !view_type_parse_ranks(text, out) ||
	    (out->stage && !(v->takes & TAKES_RANKS)))
		return false;
	out->kind = kind;
	return true;
}

bool view_type_parse(const char *name, size_t *tag_len, struct view_type *out)
{
	for (enum view_kind kind = 0; kind < VIEW_KINDS; kind++) {
		const char *suffix = all_views[kind]->suffix, *at = NULL;

		/* A tag's name may contain the suffix, too: find the last one. */
		for (const char *p = name; (p = strstr(p, suffix)); p++)
			at = p;
		if (!at || at == name || !parse_rest(kind, at + strlen(suffix), out))
			continue;
		*tag_len = (size_t)(at - name);
		return true;
	}
	return false;
}
