/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ZERO_DIR_H
#define UCKPT_ZERO_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/io/io.h"

struct dirlist;
struct errmsg;
struct errmsg_sink;
struct ptfile;
struct uckpt;

/*
 * The files of a tag directory, by their names: one for each rank, none missing.  Files are opened
 * only if the names cannot be those of one save.
 */
struct zero_dir {
	struct uckpt *u;
	char *path;
	struct stat st;         /* the directory's owner and permission bits */
	struct permissions readable_by;   /* users that may read all files */
	struct permissions names;         /* users that may read all model states, which
			         * have the parameters' names */
	bool mixed;             /* not all files have the same readers */
	/* All files, numbered as in extents; the kinds are parts of the array, in this order: */
	struct ckpt_file *files;
	size_t nfiles, cap;
	struct ckpt_file *optim; /* optimizer shard of (mp, dp) at mp * dp_degree + dp */
	size_t noptim;
	struct ckpt_file *model; /* model-states files, by mp, then dp */
	size_t nmodel;
	struct ckpt_file *expert; /* files of MoE layers, by layer, then expert */
	size_t nexpert;
	struct ckpt_file *expert_optim; /* without ZeRO: by model-, then expert-parallel rank */
	size_t nexpert_optim;
	/* Files of tensors on NVMe, by global rank (id.dp), then name. */
	struct ckpt_file *swapped;
	size_t nswapped;
	struct ckpt_file *layer; /* files of a pipeline, by layer, then tensor rank */
	size_t nlayer;
	unsigned dp_degree;
	unsigned mp_degree; /* tensor times pipeline parallel */
	bool zero3;	    /* model states are per data-parallel rank */
	char *left; /* names of files from an earlier save, which are not listed; or NULL */
};

/*
 * Scan a tag directory; `names` is its list, or NULL.  Fails with one message if it cannot be a
 * complete checkpoint of ZeRO's, or without ZeRO, which has no optimizer shards: as detect_explain,
 * or -EBADMSG if a rank's file is missing.  Call zero_dir_done in the end.
 */
int zero_dir_scan(struct uckpt *u, struct zero_dir *d, const char *path, const struct dirlist *names,
		struct errmsg *err);
void zero_dir_done(struct zero_dir *d);

/* Keep only the files of the newest save, if files record that it had fewer ranks than there
 * are. Returns whether files were left out, which renumbers the others. */
bool zero_dir_keep_newest(struct zero_dir *d);

/*
 * For an incomplete checkpoint: report each unreadable optimizer shard and model-states file, then
 * each missing one.  The grid has all ranks with a file, and as many data-parallel ranks as a file
 * records.
 */
void zero_dir_find_missing(struct uckpt *u, const char *path, const struct errmsg_sink *found);

/* Return the index in `model` of the first file of model-parallel rank `mp`.  In ZeRO-3 its
 * data-parallel ranks have one file each, and agree on all facts that are read from these. */
static inline size_t zero_dir_model_number(const struct zero_dir *d, unsigned mp)
{
	return (size_t)mp * (d->zero3 ? d->dp_degree : 1);
}

/* Return the file of this kind, rank, layer and expert among consecutive files of a directory, or
 * NULL. */
const struct ckpt_file *ckpt_files_find(const struct ckpt_file *v, size_t n, const struct ckname *id);

/* As ckpt_files_find, among all files; the file's name must be `name` unless that is NULL. */
const struct ckpt_file *zero_dir_find(const struct zero_dir *d,
				   const struct ckname *id, const char *name);

/* Return the file of an expert or of an expert-parallel rank's optimizer: the one of model-parallel
 * rank id.mp or, since tensor-parallel ranks may share it, of another of the `tp` ranks of its
 * stage. */
const struct ckpt_file *zero_dir_find_shared(const struct zero_dir *d, struct ckname id, unsigned tp);

/* Return the first file that is too small for torch.save's format, or NULL; sets `*n` to the number
 * of such files. */
const struct ckpt_file *zero_dir_find_tiny(const struct zero_dir *d, size_t *n);

#endif
