/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HFSPLIT_H
#define UCKPT_HFSPLIT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytebuf;
struct errmsg;

/* What a file may have if nobody says otherwise: "5GB". */
#define HFSPLIT_SIZE UINT64_C(5000000000)

/* A size as huggingface_hub reads it, "5GB" or "1.5mb", in decimal units: false
 * if it is none. */
bool hfsplit_parse_size(const char *text, uint64_t *out);

/* How tensors are spread over files: file f has those from order[begin[f]] up to
 * begin[f + 1], in the order in which they are saved. */
struct hfsplit {
	size_t *order;
	size_t n; /* tensors */
	size_t *begin;
	size_t nfiles;  /* at least one */
	uint64_t total; /* bytes of all storages */
};

/*
 * Split `n` tensors of `len` bytes, in the order of the state dict, into files
 * of at most `max` bytes.  `same[i]` is i, or the number of the first tensor in
 * whose storage i lies.  -ENOMEM.
 */
int hfsplit_init(struct hfsplit *s, const uint64_t *len, const size_t *same,
		 size_t n, uint64_t max, struct errmsg *err);
void hfsplit_done(struct hfsplit *s);

/* The name of file `f`, of which the only one is called `stem`, a dot and
 * `suffix`. */
void hfsplit_name(const struct hfsplit *s, const char *stem, const char *suffix,
		  size_t f, char out[NAME_MAX + 1]);

/* The text of the index that tells which file has which tensor. */
int hfsplit_index(const struct hfsplit *s, const char *stem, const char *suffix,
		  const char *const *names, struct bytebuf *out,
		  struct errmsg *err);

#endif
