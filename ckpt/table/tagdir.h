/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TAGDIR_H
#define UCKPT_TAGDIR_H

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
struct tagdir {
	struct uckpt *u;
	char *path;
	struct stat st;         /* the directory's owner and permission bits */
	struct permissions readable_by;   /* users that may read all files */
	struct permissions names;         /* users that may read all model states, which
			         * have the parameters' names */
	bool mixed;             /* not all files have the same readers */
	/* All files, numbered as in extents; the kinds are parts of the array, in this order: */
	struct tag_file *files;
	size_t nfiles, cap;
	struct tag_file *optim; /* optimizer shard of (mp, dp) at mp * dp_degree + dp */
	size_t noptim;
	struct tag_file *model; /* model-states files, by mp, then dp */
	size_t nmodel;
	struct tag_file *expert; /* files of MoE layers, by layer, then expert */
	size_t nexpert;
	struct tag_file *expert_optim; /* without ZeRO: by model-, then expert-parallel rank */
	size_t nexpert_optim;
	/* Files of tensors on NVMe, by global rank (id.dp), then name. */
	struct tag_file *swapped;
	size_t nswapped;
	struct tag_file *layer; /* files of a pipeline, by layer, then tensor rank */
	size_t nlayer;
	unsigned dp_degree;
	unsigned mp_degree; /* tensor times pipeline parallel */
	bool zero3;	    /* model states are per data-parallel rank */
	char *left; /* names of files from an earlier save, which are not listed; or NULL */
};

/*
 * Scan a tag directory; `names` is its list, or NULL.  Fails with one message if it cannot be a
 * complete checkpoint of ZeRO's, or without ZeRO, which has no optimizer shards: as detect_explain,
 * or -EBADMSG if a rank's file is missing.  Call tagdir_done in the end.
 */
int tagdir_scan(struct uckpt *u, struct tagdir *d, const char *path, const struct dirlist *names,
		struct errmsg *err);
void tagdir_done(struct tagdir *d);

/* Keep only the files of the newest save, if files record that it had fewer ranks than there
 * are. Returns whether files were left out, which renumbers the others. */
bool tagdir_keep_newest(struct tagdir *d);

/*
 * For an incomplete checkpoint: report each unreadable optimizer shard and model-states file, then
 * each missing one.  The grid has all ranks with a file, and as many data-parallel ranks as a file
 * records.
 */
void tagdir_find_missing(struct uckpt *u, const char *path, const struct errmsg_sink *found);

/* Return the index in `model` of the first file of model-parallel rank `mp`.  In ZeRO-3 its
 * data-parallel ranks have one file each, and agree on all facts that are read from these. */
static inline size_t tagdir_model_number(const struct tagdir *d, unsigned mp)
{
	return (size_t)mp * (d->zero3 ? d->dp_degree : 1);
}

/* Return the file of this kind, rank, layer and expert among consecutive files of a directory, or
 * NULL. */
const struct tag_file *tag_files_find(const struct tag_file *v, size_t n, const struct ckname *id);

/* As tag_files_find, among all files; the file's name must be `name` unless that is NULL. */
const struct tag_file *tagdir_find(const struct tagdir *d,
				   const struct ckname *id, const char *name);

/* Return the file of an expert or of an expert-parallel rank's optimizer: the one of model-parallel
 * rank id.mp or, since tensor-parallel ranks may share it, of another of the `tp` ranks of its
 * stage. */
const struct tag_file *tagdir_find_shared(const struct tagdir *d, struct ckname id, unsigned tp);

/* Return the first file that is too small for torch.save's format, or NULL; sets `*n` to the number
 * of such files. */
const struct tag_file *tagdir_find_tiny(const struct tagdir *d, size_t *n);

#endif
