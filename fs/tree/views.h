/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_VIEWS_H
#define UCFS_VIEWS_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/plan/plan.h"

struct errmsg;
struct indexfile;

/*
 * The views of a mount, by number: one of each kind for each tag directory that
 * somebody has seen.  Seeing one costs nothing; its plan is made when it is
 * first wanted, and kept.  What the views of a tag learn of its files they share.
 * Thread-safe.
 */
struct views;

#define VIEWS_MAX 65535u

/* What is learned of tags is kept in `index` (borrowed; NULL: nowhere), and
 * taken from there. */
struct views *views_new(const struct plan_options *options,
			const struct indexfile *index);

/* Keep what has been learned, if there is more than was kept before.  By one
 * thread at a time; others may be using the views. */
void views_save(struct views *v);
void views_free(struct views *v);

/* The number of a view of the tag at `path` (copied), whose entry stands in
 * the directory with inode `parent`.  -ENOMEM, -ENFILE. */
int views_add(struct views *v, const char *path, enum plan_kind kind,
	      uint64_t parent, size_t *index);

/* How many there are. */
size_t views_count(struct views *v);

/* Valid until views_free. */
const char *views_path(struct views *v, size_t index);
enum plan_kind views_kind(struct views *v, size_t index);
uint64_t views_parent(struct views *v, size_t index);

/*
 * The plan of a view, made if need be; valid until views_free.  What is wrong
 * with a tag that cannot be served is logged when it is found out; a failure
 * is tried again after a second, since the tag may still be being written.
 */
int views_plan(struct views *v, size_t index, struct plan **out,
	       struct errmsg *err);

/* The plan if it has been made, else NULL. */
struct plan *views_plan_if_made(struct views *v, size_t index);

#endif
