/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/format/module_dict.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/value.h"

/* Limits far above any model.  A dictionary may contain another one twice, so a small file could
 * expand to any number of entries. */
#define NESTED_DEPTH_MAX 16
#define NESTED_ENTRIES_MAX (1u << 20)
#define NESTED_NAME_MAX 1024

struct flattening {
	struct arena *a;
	struct value *out; /* a dict */
	const char *file;
	struct errmsg *err;
	char name[NESTED_NAME_MAX];
	size_t entries; /* visited, dictionaries included */
};

static int flatten_too_large(const struct flattening *f)
{
	return ERRMSG_FILE(f, -E2BIG,
			   "module: its dictionaries are nested too deeply or have too many entries");
}

/* Append the entries of `from`, whose name is the first `len` bytes of f->name. */
static int flatten(struct flattening *f, const struct value_dict *from,
		   size_t len, unsigned depth)
{
	assert(len < sizeof(f->name));
	if (depth > NESTED_DEPTH_MAX)
		return flatten_too_large(f);
	for (size_t i = 0; i < from->n; i++) {
		const struct value *key = from->v[i].key;
		struct value *v = from->v[i].val;
		const struct value_dict *inner = value_pairs(v);
		const char *name;
		size_t end = len;
		int rc;

		if (++f->entries > NESTED_ENTRIES_MAX || !value_is_cstr(key) ||
		    key->str.len > sizeof(f->name) - 2 - len)
			return flatten_too_large(f);
		memcpy(f->name + len, key->str.p, key->str.len);
		end += key->str.len;
		if (inner) {
			f->name[end++] = '.';
			rc = flatten(f, inner, end, depth + 1);
			if (rc)
				return rc;
			continue;
		}
		f->name[end] = '\0';
		name = arena_strndup(f->a, f->name, end);
		if (!name || !value_put(f->a, f->out, name, v))
			return errmsg_nomem(f->err, f->file);
	}
	return 0;
}

static bool is_nested(const struct value_dict *d)
{
	for (size_t i = 0; i < d->n; i++)
		if (value_is_cstr(d->v[i].key) && value_pairs(d->v[i].val))
			return true;
	return false;
}

int module_dict(const struct value *root, const char *file, struct arena *a,
		const struct value_dict **out, struct errmsg *err)
{
	struct flattening f = { .a = a, .file = file, .err = err };
	struct value *flat;
	int rc;

	*out = value_find_pairs(root, "module");
	if (!*out || !is_nested(*out))
		return 0;
	flat = value_new(a, VALUE_DICT);
	if (!flat)
		return errmsg_nomem(err, file);
	f.out = flat;
	rc = flatten(&f, *out, 0, 0);
	*out = &flat->dict;
	return rc;
}
