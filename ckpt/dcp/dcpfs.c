/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/dcp/dcpfs.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dcp/dcp.h"
#include "ckpt/pack/packfs.h"

/* A file that is made. */
struct made {
	struct dcp *d;
	enum dcp_zerofile_kind kind;
};

/* Find the file that a path, at which nothing is, leads to: 0, or `missing` if it leads to
 * none of these. */
static int made_find(struct uckpt *u, struct made *f, const char *path, int missing,
		     struct errmsg *err)
{
	const char *const slash = strrchr(path, '/');
	int rc = missing;
	char *dir;

	f->kind = 0;
	while (slash && f->kind < DCP_ZEROFILE_KINDS &&
	       strcmp(slash + 1, dcp_zerofile_name(f->kind)) != 0)
		f->kind++;
	if (!slash || f->kind == DCP_ZEROFILE_KINDS)
		return rc;
	dir = strndup(path, slash == path ? 1 : (size_t)(slash - path));
	if (!dir)
		return errmsg_nomem(err, path);
	if (dcp_is_one(u, dir))
		rc = dcp_open(u, dir, &f->d, err);
	free(dir);
	/* Nothing is there, but callers look for a text, too. */
	if (!rc && err)
		*err->text = '\0';
	return rc;
}

int dcpfs_stat(struct uckpt *u, const char *path, bool plain, struct attrs *out,
	       struct errmsg *err)
{
	int rc = packfs_stat(u, path, plain, out, err);
	struct made f;

	if (plain || !beneath_is_missing(rc))
		return rc;
	rc = made_find(u, &f, path, rc, err);
	if (rc)
		return rc;
	*out = dcp_attrs(f.d, f.kind);
	dcp_close(f.d);
	return 0;
}

static int made_read(const struct source *s, void *buf, size_t len, uint64_t off,
		     struct errmsg *err)
{
	const struct made *const f = s->ctx;

	return dcp_read(f->d, f->kind, buf, len, off, err);
}

static void made_close(struct source *s)
{
	struct made *const f = s->ctx;

	dcp_close(f->d);
	free(f);
}

int dcpfs_open(struct uckpt *u, struct source *s, const char *path,
	       struct errmsg *err)
{
	static const struct source_ops ops = { .read = made_read,
					       .close = made_close };
	int rc = packfs_open(u, s, path, err);
	struct made f, *copy;
	struct attrs a;

	if (!beneath_is_missing(rc))
		return rc;
	rc = made_find(u, &f, path, rc, err);
	if (rc)
		return rc;
	copy = malloc(sizeof(*copy));
	if (!copy) {
		dcp_close(f.d);
		return errmsg_nomem(err, path);
	}
	*copy = f;
	*s = (struct source){ .name = path, .fd = -1, .ops = &ops, .ctx = copy };
	a = dcp_attrs(f.d, f.kind);
	fileid_from_stat(&a.st, &s->id);
	s->size = s->id.size;
	return 0;
}

/* Do the entries from `first` on belong to a distributed checkpoint, and to no other? */
static bool is_listed(struct uckpt *u, const char *path, const struct dirlist *l,
		      size_t first)
{
	bool may = false;

	for (size_t i = first; i < l->n; i++) {
		const char *const name = l->v[i].name;
		const char *const tail = strstr(name, "_states.pt");

		if (tail && !tail[strlen("_states.pt")])
			return false;
		may |= strcmp(name, DCP_METADATA) == 0 ||
		       strcmp(name, DCP_PAIR_MODEL) == 0;
	}
	return may && dcp_is_one(u, path);
}

int dcpfs_list(struct uckpt *u, const char *path, bool packs, struct dirlist *out,
	       struct errmsg *err)
{
	const size_t first = out->n;
	int rc = packfs_list(u, path, packs, out, err);

	if (rc || !packs || !is_listed(u, path, out, first))
		return rc;
	for (enum dcp_zerofile_kind k = 0; !rc && k < DCP_ZEROFILE_KINDS; k++)
		rc = dirlist_add(out, dcp_zerofile_name(k), S_IFREG, S_IFREG);
	return rc ? errmsg_nomem(err, path) : 0;
}
