/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HFFILE_H
#define UCKPT_HFFILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/weights/weights.h"

struct errmsg;
struct resolve;
struct shardcache;

/* What the files of a set of weights have in common. */
struct hffile_set {
	const struct weights *w;
	struct resolve *r;
	struct shardcache *shards;
	enum dtype dtype; /* of all floats */
	bool safetensors; /* otherwise as torch.save writes it */
};

/* One file of the set: some of the weights. */
struct hffile {
	char stem[NAME_MAX + 1]; /* the name without its suffix */
	const size_t *tensors; /* numbers of weights, in the order of saving */
	size_t n;
	uint64_t size;
	/* Of safetensors what is before the tensors, and their order, as places
	 * in `tensors`; otherwise the checksum of each storage. */
	struct bytebuf head;
	size_t *order;
	vfile_crc *crc;
};

/* A type of floats as options name it: fp32, bf16, fp16.  False if it is none. */
bool hffile_parse_dtype(const char *text, enum dtype *out);

/* The type that a weight has in the set's files, and its bytes. */
enum dtype hffile_dtype(const struct hffile_set *s, size_t weight);
uint64_t hffile_bytes(const struct hffile_set *s, size_t weight);

/* Lay out a file; name and tensors (borrowed) are there.  Errors as
 * stwrite_header and ptwrite_init. */
int hffile_init(struct hffile *f, const struct hffile_set *s,
		struct errmsg *err);
void hffile_done(struct hffile *f);

/* Open it; both must outlive that.  `sums': with checksums, where there are
 * any. */
int hffile_open(struct hffile *f, const struct hffile_set *s, bool sums,
		struct vfile **out, struct errmsg *err);

#endif
