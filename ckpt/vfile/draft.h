/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DRAFT_H
#define UCKPT_DRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/ptwrite.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/gather.h"

struct errmsg;
struct tag_file;
struct value;

/* A storage that no file has. */
struct draft_storage {
	char key[24];
	uint64_t len;
	size_t after; /* bytes of `head` before it */
	struct extent_map map;
};

/*
 * A virtual file while it is laid out: the object to save, made of new values and of
 * those of an old file, and the extents of its storages.  Valid when zero-initialised,
 * but for `err`.
 *
 * What fails is noted in the draft and reported by draft_finish, so that objects can be
 * made without a look at each step: functions that make a value return NULL then, and
 * take NULL.  Loops and whatever would set another message end at draft_failed.
 */
struct draft {
	bool extents;   /* are they wanted, or only the size of the file? */
	struct arena a; /* of new values */
	struct errmsg *err;
	int rc; /* of the failure that has set `err` */
	/* The file of which the object has values, or none (`root` is NULL), and its
	 * number in extents. */
	struct ptfile old;
	uint32_t old_shard;
	struct draft_storage **fresh; /* in the arena */
	size_t nfresh, cap;
	struct extent_map lost; /* takes extents if memory ran out */
	/* Layout of the file: torch.save's, or `head` with each storage inserted where `head`
	 * ended when the storage was added. */
	struct ptwrite w;
	struct bytebuf head;
	size_t *after; /* of each storage; see struct draft_storage */
	struct extent_map *storages;
	size_t nstorages;
	struct gathers gathers; /* referred to by extents */
	uint64_t size;          /* of the whole file */
};

/* Open the old file, shard `number`. */
bool draft_open(struct draft *d, const struct tag_file *f, size_t number);

/* Note a failure that has set the message.  Returns whether there was none. */
bool draft_try(struct draft *d, int rc);

/* Note whether an allocation succeeded. */
static inline void draft_require(struct draft *d, bool ok)
{
	d->a.failed |= !ok;
}

static inline bool draft_failed(const struct draft *d)
{
	return d->rc || d->a.failed;
}

/* Add a storage for `t` and set its key.  If extents are wanted, the caller appends
 * them to the map that is returned. */
struct extent_map *draft_add_storage(struct draft *d, struct tensor *t);

/* Append bytes of the old file, or zeros, to the map of a new storage. */
void draft_add_old(struct draft *d, struct extent_map *map, uint64_t len, uint64_t at);
void draft_add_zeros(struct draft *d, struct extent_map *map, uint64_t len);

/*
 * Lay out the torch.save of `root` in a file of that stem; or, if there is no root,
 * `head` with all new storages inserted.  Returns the error that was noted, or those
 * of pickle_dump and ptwrite_init.
 */
int draft_finish(struct draft *d, const struct value *root, const char *stem);
void draft_done(struct draft *d);

#endif
