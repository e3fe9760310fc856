/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RANK_FILES_H
#define UCKPT_RANK_FILES_H

#include <stdbool.h>
#include <stddef.h>

struct dirlist;
struct errmsg;

/* A file of torch.save with the state dict of one rank of an FSDP run, or of rank 0 for all; or
 * a file of safetensors with parts of tensors, as torch's HuggingFaceStorageWriter leaves it. */
struct rank_file {
	enum rank_file_kind {
		RANK_FILE_NONE,
		RANK_FILE_MODEL,
		RANK_FILE_OPTIM,
		RANK_FILE_SHARD
	} kind;
	bool whole;     /* a single file for all ranks */
	unsigned model; /* number of the model, or of an optimizer's model, if there are several */
	unsigned world; /* number of ranks, or 0: the name does not record it */
	unsigned rank;
};

/* Parse a file name without directory. */
struct rank_file rank_file_parse(const char *name);

/* The files of a model and of its optimizer, which may be missing, in the order of ranks. */
struct rank_files {
	char *model; /* name of the model, as in option `model` */
	char **v;    /* names: `n` of the model, then as many of the optimizer, or none */
	size_t n, noptim;
	enum rank_file_kind kind; /* as rank_files_kind; RANK_FILE_NONE: the rest is empty */
	char *others; /* names of models that were not chosen; or NULL */
};

/* The kind of a directory by its names; RANK_FILE_MODEL takes precedence over RANK_FILE_SHARD. */
enum rank_file_kind rank_files_kind(const struct dirlist *names);

/*
 * Choose the files of the model called `model`, or of the first model if `model` is NULL or
 * unknown.  -EBADMSG if files of ranks are missing, or are of runs of different sizes; -ENOMEM.
 * Messages begin with `dir`.  Call rank_files_done in the end.
 */
int rank_files_find(struct rank_files *f, const struct dirlist *names, const char *model,
		    const char *dir, struct errmsg *err);
void rank_files_done(struct rank_files *f);

#endif
