/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HFDIR_H
#define UCKPT_HFDIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/table/zero_dir.h"
#include "ckpt/format/tensor.h"

struct errmsg;
struct errmsg_sink;
struct uckpt;

/*
 * A Hugging Face directory: the tensors of a model, in one file or in several
 * that an index names, of safetensors or of torch.save.  Immutable.
 */
struct hfdir {
	struct uckpt *u;
	char *path;
	struct stat st;       /* the directory's owner and permission bits */
	struct permissions readable_by; /* users that may read all files */
	struct ckpt_file *files;
	struct hfdir_header *headers; /* one per file; owns the memory that tensors point to */
	size_t nfiles;
	/* Tensors of real types (cast_knows), by name; each storage is the part of the file that
	 * the tensor views. */
	struct stored *v;
	size_t n;
	struct stored *more; /* tensors of other types, such as complex ones: the end of `v` */
	size_t nmore;
};

/*
 * model.safetensors.index.json, pytorch_model.bin.index.json: {"metadata": ...,
 * "weight_map": {"TENSOR": "FILE", ...}}, as huggingface_hub writes it.  `metadata` is
 * ignored: sizes are taken from the files.
 */
struct hfindex {
	struct cJSON *root;
	const struct cJSON *map;
	const char **files; /* names in the directory, in order, each once */
	size_t nfiles;
};

#define HFINDEX_BYTES_MAX 100000000u

/*
 * Read an index.  -EBADMSG if it is damaged or names a file outside of the directory;
 * -E2BIG.  Messages name the source.  On failure nothing needs freeing.
 */
int hfindex_read(struct hfindex *x, const struct source *src, struct errmsg *err);
void hfindex_done(struct hfindex *x);

/* Does the directory hold weights?  Looks at names only. */
bool hfdir_is_one(struct uckpt *u, const char *path);

/* As hfdir_is_one, for a directory that has been listed, unless `names` is NULL. */
bool hfdir_is_listed(struct uckpt *u, const char *path, const struct dirlist *names);

/* Are the weights of a directory found by an index, or all in the file `name`? */
bool hfdir_is_found_by(struct uckpt *u, const char *path, const char *name);

/*
 * Read all headers of a directory, but no tensor; lists it if `names` is NULL. If there are several
 * kinds of files, the kind that transformers would load is used: safetensors before torch.save's,
 * one file before several.  -ENOENT without any; -EBADMSG for a damaged file, an index that
 * contradicts the files, or two tensors of one name; -E2BIG, -ENOMEM, or the system's error.
 * Messages name the file.  Tensors that are not plain, or of types that torch lacks, are left out.
 */
int hfdir_open(struct uckpt *u, struct hfdir *d, const char *path, const struct dirlist *names,
	       struct errmsg *err);
void hfdir_done(struct hfdir *d);

/* Name the tensors that were left out, and the reasons. */
void hfdir_warn(const struct hfdir *d, const struct errmsg_sink *to);

/* Return the tensor with that name, or NULL. */
const struct stored *hfdir_find(const struct hfdir *d, const char *name);

#endif
