/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .ucfs: information about the mount itself.
 *
 *   stats		the mount's statistics
 *   errors		views that cannot be served, and the last log lines; for
 *			the owner only, as they name tags and files
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/tree/tree_impl.h"

#define INO_STATS (INO_CONTROL | 2)
#define INO_ERRORS (INO_CONTROL | 3)

bool tree_control_is_dir(uint64_t ino)
{
	return ino == INO_CONTROL;
}

int tree_control_next(uint64_t *pos, struct uckpt_entry *out)
{
	static const struct uckpt_entry entries[] = {
		{ INO_STATS, S_IFREG, true, "stats" },
		{ INO_ERRORS, S_IFREG, true, "errors" },
	};

	if (*pos >= COUNT(entries))
		return 0;
	*out = entries[(*pos)++];
	return 1;
}

static void put_text(void *bytes, const char *text)
{
	bytebuf_add_str(bytes, text);
}

/* Print a line for each view that cannot be served, then the caller's lines. */
static int control_errors(struct tree *t, struct bytebuf *out)
{
	const struct uckpt_calls *const calls = &t->o->u->calls;
	char suffix[VIEW_SUFFIX_MAX];
	struct errmsg why;
	struct slot *x;

	for (size_t i = 0; (x = slots_get(t->slots, i)); i++) {
		const enum slot_state state = slot_state(x, &why);

		if (state != SLOT_FAILED && state != SLOT_REFUSED)
			continue;
		view_type_suffix(&x->type, suffix);
		bytebuf_add_format(out, "%s%s: %s\n", x->path, suffix, why.text);
	}
	if (calls->errors)
		calls->errors(calls->arg, put_text, out);
	return out->failed ? -ENOMEM : 0;
}

int tree_control_bytes(struct tree *t, uint64_t ino, struct bytebuf *out)
{
	const struct uckpt_calls *const calls = &t->o->u->calls;

	if (tree_control_is_dir(ino))
		return -EISDIR;
	if (ino == INO_ERRORS)
		return control_errors(t, out);
	if (ino != INO_STATS)
		return -ENOENT;
	if (calls->stats)
		calls->stats(calls->arg, put_text, out);
	return out->failed ? -ENOMEM : 0;
}

int tree_control_stat(struct tree *t, uint64_t ino, struct tree_attr *out)
{
	const bool is_dir = tree_control_is_dir(ino);
	const mode_t mode = is_dir              ? S_IFDIR | 0555
			    : ino == INO_ERRORS ? S_IFREG | 0400
						: S_IFREG | 0444;
	struct bytebuf text = { 0 };
	const int rc = is_dir ? 0 : tree_control_bytes(t, ino, &text);

	tree_synthesize(t, ino, mode, text.len, 1 + is_dir, t->source.st.st_mtim.tv_sec, &out->st);
	out->timeout = is_dir ? TTL_CHANGING : 0;
	bytebuf_done(&text);
	return rc;
}
