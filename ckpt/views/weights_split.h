/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_WEIGHTS_SPLIT_H
#define UCKPT_WEIGHTS_SPLIT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytebuf;
struct errmsg;

/* The default of huggingface_hub: "5GB". */
#define WEIGHTS_SPLIT_SIZE UINT64_C(5000000000)

/* Tensors assigned to files: file f holds order[begin[f]] up to, not including,
 * order[begin[f + 1]], in the order in which they are saved. */
struct weights_split {
	size_t *order;
	size_t n; /* number of tensors */
	size_t *begin;
	size_t nfiles;  /* at least 1 */
	uint64_t total; /* bytes of all storages */
};

/*
 * Split `n` tensors of len[i] bytes, in the order of the state dict, into files
 * of at most `max` bytes.  same[i] is i, or the index of the first tensor that
 * has i's storage.  -ENOMEM. Call weights_split_done after success.
 */
int weights_split_init(struct weights_split *s, const uint64_t *len, const size_t *same, size_t n,
		       uint64_t max, struct errmsg *err);
void weights_split_done(struct weights_split *s);

/* Return the name of file `f`: STEM.SUFFIX if there is one file, else
 * STEM-00001-of-00002.SUFFIX. */
void weights_split_name(const struct weights_split *s, const char *stem, const char *suffix,
			size_t f, char out[NAME_MAX + 1]);

/* Append the index, which maps each tensor's name to its file.  `names` are in the
 * order of the files' tensors.  -ENOMEM. */
int weights_split_index(const struct weights_split *s, const char *stem, const char *suffix,
			const char *const *names, struct bytebuf *out, struct errmsg *err);

#endif
