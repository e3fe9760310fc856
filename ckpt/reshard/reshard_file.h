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
 * The files of a re-sharded checkpoint that differ from those on disk: of each
 * kind, by model-parallel rank, then data-parallel rank.
 */
enum reshard_kind {
	RESHARD_OPTIM, /* of every rank */
	RESHARD_MODEL, /* stages 1 and 2: of the first data-parallel rank only */
	RESHARD_KINDS
};

size_t reshard_count(const struct reshard *s, enum reshard_kind kind);

/* The name that DeepSpeed gives to a file; and the old file that is its model,
 * from which it has its time: for new rank r of n old ones, that of r mod n. */
void reshard_name(const struct reshard *s, enum reshard_kind kind,
		  size_t number, char name[NAME_MAX + 1]);
const struct tag_file *reshard_model_of(const struct reshard *s,
					enum reshard_kind kind, size_t number);

/* A file laid out: storage i of `w` has the extents storages[i]. */
struct reshard_file {
	struct ptwrite w;
	struct extent_map *storages;
	size_t nstorages;
};

void reshard_file_done(struct reshard_file *f);

/*
 * Lay out a file; `prefix` (its stem) must outlive it.  Without `extents` only
 * what is needed to know the size is filled in, and no old optimizer shard is
 * opened but the model.
 */
int reshard_lay_out(const struct reshard *s, enum reshard_kind kind,
		    size_t number, const char *prefix, bool extents,
		    struct reshard_file *out, struct errmsg *err);

#endif
