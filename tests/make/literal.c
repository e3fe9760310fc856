/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/make/literal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"

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
	struct value *d = mkpt_dict(m);

	for (pass(s, " "); !take(s, "}"); pass(s, ", ")) {
		struct value *key = parse(m, s);

		pass(s, ": ");
		mkpt_set_key(m, d, key, parse(m, s));
	}
	return d;
}

static struct value *parse_items(struct mkpt *m, const char **s, struct value *seq)
{
	for (pass(s, " "); **s != ')' && **s != ']'; pass(s, ", "))
		mkpt_add(m, seq, parse(m, s));
	++*s;
	return seq;
}

static struct value *parse_string(struct mkpt *m, const char **s)
{
	const size_t n = strcspn(*s, "'");
	char *text = arena_strndup(&m->arena, *s, n);
	struct value *v = mkpt_str(m, text);
	char *nul = strstr(text, "\\0");

	check((*s)[n] == '\'', *s);
	*s += n + 1;
	if (nul) {
		*nul = '\0';
		memmove(nul + 1, nul + 2, strlen(nul + 2) + 1);
		v->str.len = n - 1;
	}
	return v;
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

static struct value *parse_zeros(struct mkpt *m, const char **s, enum dtype dtype)
{
	static const float zeros[256];
	const struct value *dims = parse_items(m, s, mkpt_tuple(m, 0));
	uint64_t shape[TENSOR_DIMS_MAX], numel = 1;

	check(dims->seq.n <= COUNT(shape), *s);
	for (size_t i = 0; i < dims->seq.n; i++) {
		shape[i] = (uint64_t)dims->seq.v[i]->i;
		numel *= shape[i];
	}
	check(numel <= COUNT(zeros), *s);
	return mkpt_tensor(m, dtype, shape, (unsigned)dims->seq.n, zeros);
}

static struct value *parse_scalar(struct mkpt *m, const char **s)
{
	const float f = (float)parse_items(m, s, mkpt_tuple(m, 0))->seq.v[0]->f;

	return mkpt_tensor(m, DTYPE_F32, NULL, 0, &f);
}

static struct value *parse_nvme(struct mkpt *m, const char **s)
{
	const uint64_t none = 0;
	struct value *id = parse_items(m, s, mkpt_tuple(m, 0))->seq.v[0];

	return mkpt_attribute(m, mkpt_tensor(m, DTYPE_F32, &none, 1, NULL), "ds_id", id);
}

static struct value *parse_call(struct mkpt *m, const char **s)
{
	struct value **v = parse_items(m, s, mkpt_tuple(m, 0))->seq.v;

	return mkpt_reduce(m, mkpt_global(m, v[0]->str.p, v[1]->str.p), mkpt_tuple(m, 1, v[2]));
}

static struct value *parse(struct mkpt *m, const char **s)
{
	pass(s, " ");
	if (take(s, "None"))
		return mkpt_none(m);
	if (take(s, "True"))
		return mkpt_bool(m, true);
	if (take(s, "Size("))
		return mkpt_reduce(m, mkpt_global(m, "torch", "Size"),
				   mkpt_tuple(m, 1, parse_items(m, s, mkpt_tuple(m, 0))));
	if (take(s, "Zeros("))
		return parse_zeros(m, s, DTYPE_F32);
	if (take(s, "Halves("))
		return parse_zeros(m, s, DTYPE_BF16);
	if (take(s, "Scalar("))
		return parse_scalar(m, s);
	if (take(s, "Nvme("))
		return parse_nvme(m, s);
	if (take(s, "Call("))
		return parse_call(m, s);
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

/* Return the key that `in` has among those separated by '|', or the first. */
static const struct value *choose(struct mkpt *m, const struct value *in, const struct value *key)
{
	const char *bar;

	if (key->kind != VALUE_STR || !(bar = strchr(key->str.p, '|')))
		return key;
	key = mkpt_str(m, arena_strndup(&m->arena, key->str.p, (size_t)(bar - key->str.p)));
	return value_find(in, key->str.p) ? key : mkpt_str(m, bar + 1);
}

/* Return the address of the value under a key or an index, or NULL. */
static struct value **find(struct value *in, const struct value *key)
{
	const struct value_seq *items = value_items(in);
	const struct value_dict *pairs = value_pairs(in);

	if (items && key->kind == VALUE_INT && (uint64_t)key->i < items->n)
		return &items->v[key->i];
	for (size_t i = 0; pairs && i < pairs->n; i++) {
		struct value_pair *p = &pairs->v[i];

		if (p->key->kind == key->kind &&
		    (key->kind == VALUE_INT ? p->key->i == key->i : value_is_str(p->key, key->str.p)))
			return &p->val;
	}
	return NULL;
}

static void set(struct mkpt *m, struct value *in, const struct value *key, struct value *v,
		const char *at)
{
	struct value **slot = find(in, key);

	check(v || slot, at);
	if (in->kind != VALUE_LIST && in->kind != VALUE_TUPLE)
		mkpt_set_key(m, in, (struct value *)key, v);
	else if (v && slot)
		*slot = v;
	else if (v)
		check(false, at);
	else
		memmove(slot, slot + 1,
			(size_t)(&in->seq.v[in->seq.n--] - slot - 1) * sizeof(*slot));
}

static void append(struct mkpt *m, struct value *to, struct value *v)
{
	const struct value_dict *pairs = value_pairs(to);

	if (!pairs)
		mkpt_add(m, to, v);
	for (size_t i = 0; pairs && i < v->dict.n; i++)
		mkpt_set_new(m, to, v->dict.v[i].key->str.p, v->dict.v[i].val);
}

/* Return the part of an object that the statement names next, or NULL. */
static struct value *part(struct value *in, const char **s)
{
	if (take(s, ".pid"))
		return in->pid;
	if (take(s, ".state"))
		return in->obj->state;
	if (!take(s, ".args"))
		return NULL;
	return value_is_global(in->obj->callable, "torch._tensor", "_rebuild_from_type_v2")
		       ? in->obj->args->seq.v[2]
		       : in->obj->args;
}

/* Follow a path from `*in` to its last key and return that key, or NULL if it has none. */
static const struct value *follow(struct mkpt *m, struct value **in, const char **s)
{
	const char *at = *s;
	const struct value *key = NULL;

	while (**s == '[' || **s == '.') {
		if (key) {
			struct value **next = find(*in, key);

			check(next != NULL, at);
			*in = *next;
			key = NULL;
		}
		if (take(s, "[")) {
			key = choose(m, *in, parse(m, s));
			check(take(s, "]"), at);
		} else {
			*in = part(*in, s);
			check(*in != NULL, at);
		}
	}
	return key;
}

static struct value *parse_right(struct mkpt *m, struct value *root, const char **s)
{
	const struct value *key;
	struct value **there;

	pass(s, " ");
	if (!take(s, "@"))
		return parse(m, s);
	key = follow(m, &root, s);
	there = key ? find(root, key) : NULL;
	check(there != NULL, *s);
	return *there;
}

static void change_one(struct mkpt *m, struct value *root, const char **s)
{
	const char *at = *s;
	const bool del = take(s, "del ");
	struct value *in = root;
	const struct value *key = follow(m, &in, s);

	pass(s, " ");
	if (del) {
		check(key != NULL, at);
		set(m, in, key, NULL, at);
	} else if (take(s, "+=")) {
		struct value **to = key ? find(in, key) : NULL;

		check(to != NULL, at);
		append(m, *to, parse_right(m, root, s));
	} else {
		check(take(s, "="), at);
		if (key)
			set(m, in, key, parse_right(m, root, s), at);
		else
			*in = *parse_right(m, root, s);
	}
}

void literal_change(struct mkpt *m, struct value *root, const char *text)
{
	for (const char *s = text; *s; pass(&s, "; "))
		change_one(m, root, &s);
}
