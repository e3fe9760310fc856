/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TREEAHEAD_H
#define UCKPT_TREEAHEAD_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct plan;
struct vfile;

/*
 * Reads ahead of threads that write files of a plan in a known order, from a store
 * that is far away: the rest of the files that are being written comes first, then
 * the files that follow.  Thread-safe.
 */
struct treeahead {
	struct plan *p;
	uint64_t (*node)(const void *ctx, size_t i); /* of the i-th file */
	const void *ctx;
	size_t n;             /* files */
	pthread_mutex_t lock; /* protects the rest */
	size_t next;          /* the first file that is not wanted yet */
	struct vfile *f;      /* it, once open */
	uint64_t done;        /* bytes of it that are wanted */
};

void treeahead_init(struct treeahead *a, struct plan *p, size_t n,
		    uint64_t (*node)(const void *ctx, size_t i),
		    const void *ctx);
void treeahead_done(struct treeahead *a);

/* The i-th file will be read now, as `f`, by a thread that calls treeahead_at. */
void treeahead_begin(struct treeahead *a, size_t i);

/* Bytes of `f` from `off` on will be read. */
void treeahead_at(struct treeahead *a, struct vfile *f, uint64_t off);

#endif
