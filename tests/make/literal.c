/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/make/literal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"

static struct value *parse(struct mkpt *m, const char **s);

static void check(bool ok, const char *at)
{
	if (ok)
		return;
	fprintf(stderr, "malformed, or nothing there: %s\n", at);
	abort();
}

static void pass(const char **s, const char *what)
{
	*s += strspn(*s, what);
}

static bool take(const char **s, const char *word)
{
	const size_t n = strlen(word);
	const bool is = strncmp(*s, word, n) == 0;

	if (is)
		*s += n;
	return is;
}

static struct value *parse_dict(struct mkpt *m, const char **s)
{
	struct value *const d = mkpt_dict(m);

	for (pass(s, " "); !take(s, "}"); pass(s, ", ")) {
		struct value *const key = parse(m, s);

		pass(s, ": ");
		mkpt_set_key(m, d, key, parse(m, s));
	}
	return d;
}

static struct value *parse_items(struct mkpt *m, const char **s,
				 struct value *seq)
{
	for (pass(s, " "); **s != ')' && **s != ']'; pass(s, ", "))
		mkpt_add(m, seq, parse(m, s));
	++*s;
	return seq;
}

static struct value *parse_string(struct mkpt *m, const char **s)
{
	const size_t n = strcspn(*s, "'");
	const char *const text = arena_strndup(&m->arena, *s, n);

	check(text && (*s)[n] == '\'', *s);
	*s += n + 1;
	return mkpt_str(m, text);
}

static struct value *parse_number(struct mkpt *m, const char **s)
{
	char *end;
	const int64_t i = strtoll(*s, &end, 10);
	struct value *v;

	if (*end == '.')
		v = mkpt_float(m, strtod(*s, &end));
	else
		v = mkpt_int(m, i);
	check(end != *s, *s);
	*s = end;
	return v;
}

static struct value *parse(struct mkpt *m, const char **s)
{
	pass(s, " ");
	if (take(s, "None"))
		return mkpt_none(m);
	if (take(s, "True"))
		return mkpt_bool(m, true);
	if (take(s, "Size("))
		return mkpt_reduce(
			m, mkpt_global(m, "torch", "Size"),
			mkpt_tuple(m, 1, parse_items(m, s, mkpt_tuple(m, 0))));
	if (take(s, "'"))
		return parse_string(m, s);
	if (take(s, "{"))
		return parse_dict(m, s);
	if (take(s, "("))
		return parse_items(m, s, mkpt_tuple(m, 0));
	if (take(s, "["))
		return parse_items(m, s, mkpt_list(m));
	return parse_number(m, s);
}

struct value *literal_value(struct mkpt *m, const char *text)
{
	return text ? parse(m, &text) : NULL;
}

/* Of keys that '|' separates, the one that `in` has, or the first. */
static const struct value *choose(struct mkpt *m, const struct value *in,
				  const struct value *key)
{
	const char *bar;

	if (key->kind != VALUE_STR || !(bar = strchr(key->str.p, '|')))
		return key;
	key = mkpt_str(m, arena_strndup(&m->arena, key->str.p,
					(size_t)(bar - key->str.p)));
	return value_find(in, key->str.p) ? key : mkpt_str(m, bar + 1);
}

/* What a key or an index stands for: its address, or NULL. */
static struct value **find(struct value *in, const struct value *key)
{
	const struct value_seq *const items = value_items(in);
	const struct value_dict *const pairs = value_pairs(in);

	if (items && key->kind == VALUE_INT && (uint64_t)key->i < items->n)
		return &items->v[key->i];
	for (size_t i = 0; pairs && i < pairs->n; i++) {
		struct value_pair *const p = &pairs->v[i];

		if (p->key->kind == key->kind &&
		    (key->kind == VALUE_INT ? p->key->i == key->i
					    : value_is_str(p->key, key->str.p)))
			return &p->val;
	}
	return NULL;
}

static void set(struct mkpt *m, struct value *in, const struct value *key,
		struct value *v, const char *at)
{
	struct value **const slot = find(in, key);

	check(v || slot, at);
	if (in->kind != VALUE_LIST && in->kind != VALUE_TUPLE)
		mkpt_set_key(m, in, (struct value *)key, v);
	else if (v && slot)
		*slot = v;
	else if (v)
		check(false, at);
	else
		memmove(slot, slot + 1,
			(size_t)(&in->seq.v[in->seq.n--] - slot - 1) *
				sizeof(*slot));
}

static void change_one(struct mkpt *m, struct value *in, const char **s)
{
	const char *const at = *s;
	const bool del = take(s, "del ");
	const struct value *key = NULL;

	for (pass(s, " "); take(s, "["); check(take(s, "]"), at)) {
		if (key) {
			struct value **const next = find(in, key);

			check(next != NULL, at);
			in = *next;
		}
		key = choose(m, in, parse(m, s));
	}
	check(key != NULL, at);
	pass(s, " ");
	if (del) {
		set(m, in, key, NULL, at);
	} else if (take(s, "+=")) {
		struct value **const list = find(in, key);

		check(list != NULL, at);
		mkpt_add(m, *list, parse(m, s));
	} else {
		check(take(s, "="), at);
		set(m, in, key, parse(m, s), at);
	}
}

void literal_change(struct mkpt *m, struct value *root, const char *text)
{
	for (const char *s = text; *s; pass(&s, "; "))
		change_one(m, root, &s);
}
