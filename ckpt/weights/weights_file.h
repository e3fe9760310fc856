/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_WEIGHTS_FILE_H
#define UCKPT_WEIGHTS_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/weights/weights.h"

struct errmsg;
struct zero_checkpoint;
struct shardcache;

/* What all files of one set of weights share. */
struct weights_file_set {
	const struct weights *w;
	struct zero_checkpoint *r;
	struct shardcache *shards;
	enum dtype dtype; /* type of all floating-point weights */
	bool safetensors; /* or else torch.save's format */
};

/* One file of the set. */
struct weights_file {
	char stem[NAME_MAX + 1]; /* the name without its suffix */
	const size_t *tensors; /* indices of weights, in the order of saving;
			        * borrowed */
	size_t n;
	uint64_t size;
	/* With safetensors: the bytes before the first tensor, and the order of
	 * the tensors as indices into `tensors`.  Otherwise the checksum of
	 * each storage. */
	struct bytebuf head;
	size_t *order;
	vfile_crc *crc;
};

/* Parse a floating-point type as options name it: fp32, bf16, fp16.  Returns
 * false for other text. */
bool weights_file_parse_dtype(const char *text, enum dtype *out);

/* The type and size in bytes of a weight in the set's files. */
enum dtype weights_file_dtype(const struct weights_file_set *s, size_t weight);
uint64_t weights_file_bytes(const struct weights_file_set *s, size_t weight);

/* Lay out a file whose stem and tensors are set.  Errors as
 * safetensors_write_header and ptwrite_init.  Call weights_file_done
 * afterwards, also after a failure. */
int weights_file_init(struct weights_file *f, const struct weights_file_set *s,
		      struct errmsg *err);
void weights_file_done(struct weights_file *f);

/* Open a file for reading; `f` and `s` must outlive it.  With `sums`, a
 * torch.save file gets checksums.  Errors as weights_add. */
int weights_file_open(struct weights_file *f, const struct weights_file_set *s,
		      bool sums, struct vfile **out, struct errmsg *err);

#endif
