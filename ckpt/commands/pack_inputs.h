/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACK_INPUTS_H
#define UCKPT_PACK_INPUTS_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/attrs.h"
#include "ckpt/format/tensor.h"
#include "ckpt/pack/pack_write.h"

struct errmsg;
struct uckpt;

/* The contents of a directory, sorted by name, the directory itself first. */
struct pack_inputs {
	struct uckpt *u;
	const char *dir; /* borrowed */
	struct pack_input *v;
	size_t n, cap;
	uint64_t least;
	struct permissions readable_by; /* group and read bits: users that may read everything */
};

/* Storages with fewer bytes of floats are not worth an extent. */
#define PACK_INPUTS_LEAST 4096

/*
 * List a directory and everything below it, and find the storages in each file: storages of floats
 * with at least `least` bytes become regions of their type, everything else, including damaged
 * files and files without tensors, becomes regions of bytes.  -ENOTSUP for anything but files and
 * directories, -E2BIG, -ENOMEM, or the system's error.
 */
int pack_inputs_list(struct uckpt *u, struct pack_inputs *x, const char *dir,
		     uint64_t least, struct errmsg *err);
void pack_inputs_done(struct pack_inputs *x);

/*
 * Return the mode of a pack of group `gid` that is readable only by users who may list every
 * directory, read every file, and search the directories above.  The group gets read bits only if
 * all files have that group, or if others may read them, too.
 */
mode_t pack_inputs_mode(const struct pack_inputs *x, gid_t gid);

/* Return the number of the file with that relative name, or -1. */
int64_t pack_inputs_find(const struct pack_inputs *x, const char *name);

/* The region that holds bytes [off, off + len) of a file, or NULL. */
struct pack_region *pack_inputs_region(const struct pack_input *in,
				       uint64_t off, uint64_t len);

/* Replace bytes of a file, which lie in one region, by the region `r`.  False when memory runs out;
 * the regions are then unchanged. */
bool pack_inputs_set(struct pack_input *in, const struct pack_region *r);

/* The block type for elements of a dtype. */
enum block_type pack_inputs_type(enum dtype d);

/*
 * Find weights in a ZeRO tag's model files that can be derived from the optimizer's master weights,
 * and let their regions refer to these, if they have at least the inputs' `least` bytes.  The
 * writer compares them.  A directory that is not a valid tag is left unchanged; the only error is
 * -ENOMEM.
 */
int pack_derive(struct pack_inputs *x, struct errmsg *err);

#endif
