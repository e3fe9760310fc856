/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CKDIR_H
#define UCKPT_CKDIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/dirs/names.h"
#include "ckpt/base/source.h"

struct errmsg;
struct ptfile;

/* A shard: one file that a rank wrote. */
struct ckfile {
	char *path;
	const char *name; /* within path */
	struct ckname id;
	struct fileid file; /* as it was when the directory was scanned */
	int64_t mtime_s;
	unsigned mode; /* permission bits */
};

/*
 * The files of a tag directory, as their names tell: which ranks wrote, how
 * many there are, none missing in between.  Nothing has been opened.
 */
struct ckdir {
	char *path;
	char *tag; /* last component of path */
	unsigned mode; /* the directory's permission bits */
	struct ckfile *optim; /* optimizer shard of (mp, dp) at mp * dp_degree + dp */
	size_t noptim;
	struct ckfile *model; /* model-states files, by mp, then dp */
	size_t nmodel;
	unsigned dp_degree;
	unsigned mp_degree; /* tensor times pipeline parallel */
	bool zero3;	    /* model states are per data-parallel rank */
	struct ckfile *layer; /* of a pipeline, by layer, then tensor rank */
	size_t nlayer;
	struct ckfile *expert; /* of MoE layers, by layer, then expert */
	size_t nexpert;
	/* Tensors that were on NVMe, by rank among all (id.dp), then name. */
	struct ckfile *swapped;
	size_t nswapped;
};

/*
 * Scan a tag directory.  Fails with one message if it cannot be a complete
 * ZeRO checkpoint: -ENOENT no checkpoint at all, -ENOTSUP not one of ZeRO,
 * -EBADMSG a rank's file is missing.  Call ckdir_done in the end.
 */
int ckdir_scan(struct ckdir *d, const char *path, struct errmsg *err);
void ckdir_done(struct ckdir *d);

/* The number of a rank's file in `swapped`, or -1. */
int64_t ckdir_find_swapped(const struct ckdir *d, unsigned rank,
			   const char *name);

/*
 * Files in the numbering of extents: optimizer shards, model states, experts,
 * those of swapped tensors.
 */
size_t ckdir_count(const struct ckdir *d);
const struct ckfile *ckdir_file(const struct ckdir *d, size_t number);

/* Open a file of the directory.  -EIO if it is not the one that was scanned
 * any more; otherwise as ptfile_open. */
int ckdir_open_file(const struct ckfile *f, struct ptfile *pt,
		    struct errmsg *err);

/* Does the directory hold files of a checkpoint, of whatever kind?  Looks at
 * names only. */
bool ckdir_is_tag(const char *path);

/* Does it hold optimizer shards, so that it should have a view? */
bool ckdir_is_zero_tag(const char *path);

#endif
