/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RANK_FILES_H
#define UCKPT_RANK_FILES_H

#include <stdbool.h>
#include <stddef.h>

struct dirlist;
struct errmsg;

/* A file of torch.save with the state dict that one rank of an FSDP run has, or rank 0 for
 * all; or one of safetensors with parts of tensors, as torch's HuggingFaceStorageWriter leaves
 * it. */
struct rank_file {
	enum rank_file_kind {
		RANK_FILE_NONE,
		RANK_FILE_MODEL,
		RANK_FILE_OPTIM,
		RANK_FILE_SHARD
	} kind;
	bool whole;     /* one for all ranks */
	unsigned model; /* the number of one of several models, or of its optimizer */
	unsigned world; /* how many ranks there are, or 0: the name does not say */
	unsigned rank;
};

/* Parse a file name without directory. */
struct rank_file rank_file_parse(const char *name);

/* The files of a model and of its optimizer, which may be missing, in the order of ranks. */
struct rank_files {
	char *model; /* the name of the model, as option `model` has it */
	char **v;    /* names: `n` of the model, then as many of the optimizer, or none */
	size_t n, noptim;
	enum rank_file_kind kind; /* as rank_files_kind; RANK_FILE_NONE: the rest is empty */
	char *others; /* names of models that were not chosen; or NULL */
};

/* What the names of a directory say: RANK_FILE_MODEL before RANK_FILE_SHARD, or neither. */
enum rank_file_kind rank_files_kind(const struct dirlist *names);

/*
 * Choose the files of the model that is called `model`, or of the first if that is NULL or no
 * model's.  -EBADMSG if files of ranks are missing, or are of runs of different sizes; -ENOMEM.
 * Messages begin with `dir`.  Call rank_files_done in the end.
 */
int rank_files_find(struct rank_files *f, const struct dirlist *names, const char *model,
		    const char *dir, struct errmsg *err);
void rank_files_done(struct rank_files *f);

#endif
