/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_IO_H
#define UCKPT_IO_H

#include "ckpt/base/attrs.h"
#include "ckpt/base/source.h"
#include "ckpt/format/names.h"

struct errmsg;
struct pack;
struct ptfile;
struct uckpt;

/*
 * Files by path, on this machine (beneath.h) and on servers (remote.h), in directories and in packs
 * (packed.h), in one directory or in those of a union.
 *
 * A path that begins with the name of a union (roots.h) is looked up in its roots in order.  A file
 * that several roots have must have the same size in all: else -EBADMSG.
 *
 * Where a directory is missing, a pack of its name with PACK_SUFFIX stands for it, and a pack is a
 * directory itself: run/TAG/FILE and run/TAG.ucpack/FILE are FILE in run/TAG.ucpack.  Real files
 * take precedence over packed ones.  Paths of packs are resolved as in beneath.h.
 */

/* Ignore packs, and resolve as beneath_stat does for a plain path. */
#define IO_PLAIN 1u

/*
 * Find a file or directory.  A directory of several roots has the attributes of the first,
 * and the users that may search all of them, or with IO_PLAIN, list and search.
 * `*where`, which the caller frees, becomes the path in the first root that has it; `where`
 * may be NULL.  -EBADMSG also for a damaged pack; otherwise as beneath_fail.
 */
int io_stat(struct uckpt *u, const char *path, unsigned flags, struct attrs *out, char **where,
	    struct errmsg *err);

/*
 * List a directory; one of a union has the names that any root has.  `*out` begins with
 * zeros, but for `wanted`, and is empty after an error.  It is sorted as by dirlist_finish, but
 * unsorted with `wanted`.  Errors as io_stat, or the system's error.
 */
int io_list(struct uckpt *u, const char *path, unsigned flags, struct dirlist *out,
	    struct errmsg *err);

/* Open a regular file.  `path` must outlive the source, which has no descriptor unless it is
 * a local file.  If the file is not of the identity `known`, unless that is NULL: -EIO, with
 * how it differs. */
int io_open(struct uckpt *u, const char *path, const struct fileid *known, struct source *out,
	    struct errmsg *err);

/* As beneath_open with O_NOFOLLOW; -EREMOTE for a file of a server, which has no
 * descriptor. */
int io_open_plain(struct uckpt *u, const char *path, int flags);

/* Open the pack at `path`.  All callers of a context share the pack of a file; each calls
 * pack_close.  Errors as io_open and pack_open_source. */
int io_open_pack(struct uckpt *u, const char *path, struct pack **out, struct errmsg *err);

/* Return the name of the directory that a pack represents: the pack's name without PACK_SUFFIX.
 * NULL when memory runs out. */
char *io_dir_name(const char *name);

/* Return the name of the tag that an entry of a run represents: its own, or that of a pack's
 * directory.  NULL for any other file; a run may have any number of them. */
char *io_tag_name(const char *name, mode_t type);

/* Make a context with the default options and nothing open; NULL when memory runs out. */
struct uckpt *context_new(void);

/* Free a context.  Everything opened in it must have been closed.  `u` may be NULL. */
void context_free(struct uckpt *u);

/* Open a file of torch.save.  Errors as io_open and ptfile_open_source. */
int io_open_pt(struct uckpt *u, const char *path, const struct fileid *known, struct ptfile *out,
	       struct errmsg *err);

/* A file of a checkpoint: a shard, which is a file that a rank wrote, or one of Hugging
 * Face weights. */
struct ckpt_file {
	const char *name; /* first: array_by_text; within path */
	struct uckpt *u;
	char *path;
	struct ckname id;   /* of a shard */
	struct fileid file; /* its identity when it was found */
	int64_t mtime_s;
	struct permissions readable_by; /* users that may read it */
};

/* Find the file at f->path and fill in the rest, but for `id`; errors as io_stat. */
int ckpt_file_find(struct ckpt_file *f, struct errmsg *err);

/* Open a file of the directory.  -EIO if it was replaced since it was scanned;
 * otherwise as ptfile_open_source. */
int ckpt_file_open(const struct ckpt_file *f, struct ptfile *pt, struct errmsg *err);

#endif
