/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/table/qkv.h"

#include <errno.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"

#define HEADS_MAX 4096u

const char *const qkv_parts[QKV_PARTS] = { "wq", "wk", "wv" };

bool qkv_is(const char *name, const char *part, size_t *prefix)
{
	const char *dot = strrchr(name, '.'), *begin = dot;

	while (begin && begin > name && begin[-1] != '.')
		begin--;
	if (!begin || strlen(part) != (size_t)(dot - begin) ||
	    strncmp(begin, part, strlen(part)) != 0)
		return false;
	*prefix = (size_t)(begin - name);
	return true;
}

const char *qkv_name(struct arena *a, const char *name, size_t prefix, const char *part)
{
	return arena_format(a, "%.*s%s%s", (int)prefix, name, part, strrchr(name, '.'));
}

const char *qkv_norm_name(struct arena *a, const char *name, size_t prefix)
{
	size_t n = prefix;

	/* It is beside the module of the projection. */
	while (n && (n == prefix || name[n - 1] != '.'))
		n--;
	return prefix ? arena_format(a, "%.*sq_norm.weight", (int)n, name) : NULL;
}

uint64_t qkv_head(const struct uckpt *u, unsigned ndim, const uint64_t *norm)
{
	return u->head_dim ?: ndim == 1 ? norm[0] : 0;
}

int qkv_init(struct qkv *x, const char *fused, const char *const names[QKV_PARTS],
	     const uint64_t rows[QKV_PARTS], uint64_t head, struct errmsg *err)
{
	*x = (struct qkv){ .heads = head ? rows[1] / head : 0 };
	if (!head)
		return errmsg_set(err, -ENOTSUP,
			"%s: its rows are those of heads in turn, and their number is not recorded: option head_dim=N tells",
				  fused);
	if (x->heads > HEADS_MAX)
		return errmsg_set(err, -ENOTSUP, "%s: has more than %u heads, of %llu rows", fused,
				  HEADS_MAX, (unsigned long long)head);
	if (!x->heads)
		return errmsg_set(err, -ENOTSUP, "%s: has no heads of %llu rows", fused,
				  (unsigned long long)head);
	for (unsigned i = 0; i < QKV_PARTS; i++) {
		x->before[i] = x->rows_of;
		x->rows[i] = rows[i] / x->heads;
		if (x->rows[i] * x->heads != rows[i] || x->rows[i] % head ||
		    (i ? x->rows[i] != head : !rows[i]))
			return errmsg_set(err, -ENOTSUP, "%s: has no heads of %llu rows", names[i],
					  (unsigned long long)head);
		x->rows_of += x->rows[i];
	}
	return 0;
}
