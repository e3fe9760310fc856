/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_FILE_LAYOUT_H
#define UCKPT_FILE_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytes.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/ptwrite.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/gather.h"

struct errmsg;
struct ckpt_file;
struct value;

/* A storage of a file that torch.save does not write. */
struct layout_storage {
	size_t number; /* index among the new storages */
	char key[24];
	uint64_t len;
	size_t after; /* bytes of `head` before it */
	struct extent_map map;
};

/*
 * A virtual file while it is laid out: the object to save, made of new values and of those of an
 * old file, and the extents of its storages.  Valid when zero-initialised, except for `err`.
 *
 * A failure is noted in the layout and reported by layout_finish, so callers need not check each
 * step: functions that make values then return NULL, and accept NULL.  Loops, and code that would
 * set another message, must stop at layout_failed.
 */
struct file_layout {
	bool extents;   /* extents are wanted, not only the size of the file */
	struct arena a; /* of new values */
	struct errmsg *err;
	int rc; /* result of the failure that has set `err` */
	/* The file that provides old values of the object (`root` is NULL if there is none), and
	 * its shard number. */
	struct ptfile old;
	uint32_t old_shard;
	struct layout_storage **fresh; /* in the arena */
	size_t nfresh, cap;
	struct extent_map lost; /* receives extents after memory ran out */
	/* Layout of the file: torch.save's, or `head` with each storage inserted where `head`
	 * ended when the storage was added. */
	struct ptwrite w;
	struct bytebuf head;
	size_t *after; /* of each storage; see struct layout_storage */
	struct extent_map *storages;
	struct layout_storage **placed; /* of each storage; NULL: the storage is the old file's */
	size_t nstorages;
	struct gathers gathers; /* referred to by extents */
	uint64_t size;          /* of the whole file */
};

/* Open the old file, shard `number`. */
bool layout_use_file(struct file_layout *d, const struct ckpt_file *f, size_t number);

/* Note a failure that has set the message.  Returns true if `rc` is 0. */
bool layout_note(struct file_layout *d, int rc);

/* Note whether an allocation succeeded. */
static inline void layout_need_memory(struct file_layout *d, bool ok)
{
	d->a.failed |= !ok;
}

static inline bool layout_failed(const struct file_layout *d)
{
	return d->rc || d->a.failed;
}

/* Add a storage for `t` and set its key.  If extents are wanted, the caller appends
 * them to the map that is returned. */
struct extent_map *layout_add_storage(struct file_layout *d, struct tensor *t);

/* Append bytes of the old file, or zeros, to the map of a new storage. */
void layout_add_old(struct file_layout *d, struct extent_map *map, uint64_t len, uint64_t at);
void layout_add_zeros(struct file_layout *d, struct extent_map *map, uint64_t len);

/*
 * Lay out the torch.save of `root` in a file with that stem or, if `root` is NULL, `head` with all
 * new storages inserted.  Returns the recorded error, or errors of pickle_dump and ptwrite_init.
 */
int layout_finish(struct file_layout *d, const struct value *root, const char *stem);
void layout_done(struct file_layout *d);

#endif
