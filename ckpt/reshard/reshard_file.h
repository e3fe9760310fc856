/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RESHARD_FILE_H
#define UCKPT_RESHARD_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "ckpt/format/ptwrite.h"
#include "ckpt/vfile/extent.h"

struct errmsg;
struct reshard;
struct tag_file;

/*
 * The files of a re-cut checkpoint that differ from those on disk.  Files of a kind
 * are numbered by model-parallel rank, then by data-parallel rank.
 */
enum reshard_kind {
	RESHARD_OPTIM, /* one per rank */
	RESHARD_MODEL, /* stages 1 and 2: first data-parallel rank only */
	RESHARD_KINDS
};

size_t reshard_count(const struct reshard *s, enum reshard_kind kind);

/* Return the name that DeepSpeed gives to a file. */
void reshard_name(const struct reshard *s, enum reshard_kind kind,
		  size_t number, char name[NAME_MAX + 1]);

/* Return the old file that a new one is modelled on: new rank r of n old ranks takes
 * that of r mod n.  The new file has its timestamp. */
const struct tag_file *reshard_model_of(const struct reshard *s,
					enum reshard_kind kind, size_t number);

/* The layout of a file: storage i of `w` has the extents storages[i]. */
struct reshard_file {
	struct ptwrite w;
	struct extent_map *storages;
	size_t nstorages;
};

void reshard_file_done(struct reshard_file *f);

/*
 * Lay out a file; `prefix` (its stem) must outlive `out`.  Without `extents` the
 * layout is enough to know the file's size, and the only optimizer shard opened is
 * the one that the file is modelled on.
 */
int reshard_lay_out(const struct reshard *s, enum reshard_kind kind,
		    size_t number, const char *prefix, bool extents,
		    struct reshard_file *out, struct errmsg *err);

#endif
