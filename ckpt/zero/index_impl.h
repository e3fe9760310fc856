/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INDEX_IMPL_H
#define UCKPT_INDEX_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/model/rank_params.h"
#include "ckpt/model/experts.h"
#include "ckpt/zero/partition.h"
#include "ckpt/zero/shard.h"

/*
 * The form of an index, all numbers little-endian; a text is its length (32
 * bits) and its bytes:
 *
 *   version	text	INDEX_VERSION " " PACKAGE_VERSION
 *   degrees	mp, dp (32 bits each), zero3 (8)
 *   files	how many model states, experts' files, files of swapped tensors
 *		(32 each); of all files of the directory, in its numbering,
 *		device, inode, size, mtime in ns (64 each)
 *   catalogues	of each model-parallel rank, see index_write.c
 *   layouts	of each: is it known (8); the alignment paddings of its groups
 *   shards	of each: is it known (8); its groups
 *
 * To be counted up with every change of the form, and when something else is
 * read from pickles than before.
 */
#define INDEX_VERSION "3"

/* How the slices of a catalogue are given. */
enum { INDEX_SLICES_OWN, INDEX_SLICES_OF_FIRST };

/* Where a slice's tensor is. */
enum { INDEX_IN_GROUP, INDEX_IN_MODULE };

/* Whoever adds a field to one of these has it forgotten between two mounts,
 * unless index_write.c and index_read.c know it, too. */
#define INDEX_KNOWS(type, size)                                              \
	_Static_assert(sizeof(struct type) == (size) || sizeof(void *) != 8, \
		       #type " has a field that the index has not")
INDEX_KNOWS(flat, 32);
INDEX_KNOWS(shard_state, 80);
INDEX_KNOWS(shard_group, 56);
INDEX_KNOWS(shard, 64);
INDEX_KNOWS(layout, 32);
INDEX_KNOWS(spread, 12);
INDEX_KNOWS(partition, 48);
INDEX_KNOWS(module_tensor, 64);
INDEX_KNOWS(slice, 80);
INDEX_KNOWS(slice_group, 32);
INDEX_KNOWS(expert_layer, 40);
INDEX_KNOWS(experts, 24);
INDEX_KNOWS(catalogue, 200);

struct ckfile;
struct input;

/* Elements [0, numel) at `offset`: do they lie in the file? */
bool index_lies_within(uint64_t offset, uint64_t numel, enum dtype dtype,
		       const struct ckfile *f);

/* index_shard.c: the layout of a model-parallel rank, if it is known. */
int index_read_layout(struct input *in, unsigned mp);

/* Shard number `i`, if it is known.  The first of its model-parallel rank comes
 * before it. */
int index_read_shard(struct input *in, size_t i);

#endif
