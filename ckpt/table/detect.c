/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recognises the formats of other programs by the names of their files, and explains how to use
 * them.
 *
 * DCP: torch/distributed/checkpoint/filesystem.py, which writes .metadata last.  Megatron-LM:
 * megatron/core/dist_checkpointing (common.pt beside a DCP) and megatron/training/checkpointing.py.
 * Accelerate: utils/fsdp_utils.py.  Without ZeRO DeepSpeed's model states of each model-parallel
 * rank have its optimizer, too (runtime/engine.py, _save_checkpoint).
 */
#include "ckpt/table/detect.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/array.h"
#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/hfdir.h"
#include "ckpt/table/rank_files.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"

#define MEGATRON                                                               \
	"a checkpoint of Megatron-LM: export it to Hugging Face's format with" \
	" Megatron's tools, and give that directory"
#define HUGGING_FACE \
	"Hugging Face weights: their directory can be mounted and converted"
#define TORCH_SAVE                                                          \
	"a file of torch.save and not a ZeRO checkpoint: a dict of tensors" \
	" can be mounted under the name pytorch_model.bin"

#define MODEL_STATES "*_model_states.pt"

/* The first pattern that matches decides. */
#define MODEL_STATES3 "zero_pp_rank_*_model_states.pt"

static const struct kind {
	const char *pattern; /* of a file or directory */
	const char *text;    /* message, after the name that matches */
} kinds[] = {
	{ MODEL_STATES3,
	  "no *_optim_states.pt files here: copy the optimizer shards of all ranks, which"
	  " with ZeRO-3 alone have the weights" },
	{ MODEL_STATES,
	  "no *_optim_states.pt files here: copy the optimizer shards of all ranks; a"
	  " checkpoint without ZeRO (stage 0) must have been saved with its optimizer" },
	{ "common.pt", MEGATRON },
	{ "latest_checkpointed_iteration.txt", MEGATRON },
	{ "iter_[0-9]*", MEGATRON },
	{ "mp_rank_[0-9][0-9]", MEGATRON },
	{ "mp_rank_[0-9][0-9]_[0-9][0-9][0-9]", MEGATRON },
	{ "model_optim_rng.pt", MEGATRON },
	{ "__[0-9]*.metadata",
	  "a PyTorch distributed checkpoint with metadata of each rank, which"
	  " is not read: save it with collectives (no_dist=False)" },
	{ "__[0-9]*.distcp",
	  "an unfinished PyTorch distributed checkpoint: .metadata, which is"
	  " written last, is missing" },
	{ "pytorch_model_fsdp_[0-9]*",
	  "saved by Accelerate with FSDP, but pytorch_model_fsdp_0/.metadata,"
	  " which is written last, is missing" },
	{ "model.safetensors*", HUGGING_FACE },
	{ "pytorch_model.bin*", HUGGING_FACE },
	{ "*.safetensors",
	  "not a ZeRO checkpoint: weights can be mounted under the name"
	  " model.safetensors" },
	{ "*.bin", TORCH_SAVE },
	{ "*.pt", TORCH_SAVE },
	{ "*.pth", TORCH_SAVE },
	{ "*.ckpt", TORCH_SAVE },
};

/* Is NAME in a directory of this type? */
static bool has(struct uckpt *u, const char *path, const char *name, mode_t type)
{
	struct attrs a;
	char *file;
	bool is;

	if (asprintf(&file, "%s/%s", path, name) < 0)
		return false;
	is = io_stat(u, file, 0, &a, NULL, NULL) == 0 && (a.st.st_mode & S_IFMT) == type;
	free(file);
	return is;
}

bool detect_is_universal(struct uckpt *u, const char *path)
{
	return has(u, path, "zero", S_IFDIR);
}

/* Does a directory of this name have a distributed checkpoint? */
static bool has_dcp(struct uckpt *u, const char *path, const char *name)
{
	char *file;
	bool is;

	if (asprintf(&file, "%s/" DCP_METADATA, name) < 0)
		return false;
	is = has(u, path, file, S_IFREG);
	free(file);
	return is;
}

/* Search a list that may not be sorted. */
static bool is_listed(const struct dirlist *l, const char *name)
{
	size_t i = 0;

	while (i < l->n && strcmp(l->v[i].name, name) != 0)
		i++;
	return i < l->n;
}

const char *const *detect_dcp_pair(struct uckpt *u, const char *path, const struct dirlist *names)
{
	for (size_t i = 0; i < DCP_PAIRS; i++) {
		const char *const *pair = names_dcp_pairs[i];

		if (names && (!is_listed(names, pair[0]) || (i && !is_listed(names, pair[1]))))
			continue;
		if (has_dcp(u, path, pair[0]) && (!i || has_dcp(u, path, pair[1])))
			return pair;
	}
	return NULL;
}

static bool is_optim(const char *name)
{
	return names_parse(name).kind == CKPT_FILE_OPTIM;
}

enum dir_kind detect(struct uckpt *u, const char *path, struct dirlist *names)
{
	bool states = false, first = false, zero = false, any = false, dcp = false, weights;
	struct dirlist l = { .wanted = names ? NULL : is_optim };
	const bool listed = !io_list(u, path, 0, &l, NULL);
	bool optim = listed && l.found;
	enum rank_file_kind ranks;
	enum dir_kind kind;

	for (size_t i = 0; i < l.n; i++) {
		const char *name = l.v[i].name;
		const enum ckpt_file_kind file = names_parse(name).kind;

		optim |= file == CKPT_FILE_OPTIM;
		states |= names_ends_with(name, "_states.pt");
		any |= file != CKPT_FILE_OTHER;
		first |= strcmp(name, STAGE0_FIRST) == 0;
		zero |= strcmp(name, "zero") == 0; /* a universal checkpoint has model states, too */
		dcp |= strcmp(name, DCP_METADATA) == 0;
	}
	weights = !optim && hfdir_is_listed(u, path, listed ? &l : NULL);
	ranks = rank_files_kind(&l);
	dcp = dcp || (!optim && (ranks == RANK_FILE_MODEL || (ranks && !weights) ||
				 detect_dcp_pair(u, path, &l)));
	kind = optim                                          ? DIR_ZERO
	       : dcp && !states                               ? DIR_DCP
	       : first && !zero                               ? DIR_STAGE0
	       : any                                          ? DIR_STATES
	       : weights                                      ? DIR_WEIGHTS
							      : DIR_OTHER;
	if (names)
		*names = l;
	else
		dirlist_done(&l);
	return kind;
}

int stage0_check_optimizer(const struct value *root, const char *file, struct errmsg *err)
{
	const struct value *optimizer = value_find(root, "optimizer");

	if (!value_pairs(optimizer))
		return errmsg_set(err, -ENOTSUP, "%s: has no optimizer, and there are no"
				  " *_optim_states.pt files here: copy the optimizer shards of all ranks",
				  file);
	if (value_find(optimizer, KEY_FP32_GROUPS))
		return errmsg_set(err, -ENOTSUP, "%s: saved without ZeRO (stage 0) by"
				  " BF16_Optimizer, which saves the states of one"
				  " data-parallel rank only",
				  file);
	return 0;
}

static enum stage0_kind kind_of(const struct value *root)
{
	if (!stage0_check_optimizer(root, "", NULL))
		return STAGE0_OPTIMIZER;
	return value_find_pairs(root, "module") || value_find_items(root, "param_shapes")
		       ? STAGE0_WEIGHTS
		       : STAGE0_NONE;
}

enum stage0_kind stage0_look(struct uckpt *u, const char *dir, struct errmsg *err)
{
	enum stage0_kind kind = STAGE0_NONE;
	struct ptfile pt;
	struct source src;
	char *path;

	if (asprintf(&path, "%s/" STAGE0_FIRST, dir) < 0)
		return kind;
	if (!io_open(u, path, NULL, &src, err) && !ptfile_open_source(&pt, &src, err)) {
		kind = kind_of(pt.root);
		ptfile_close(&pt);
	}
	free(path);
	return kind;
}

/* Is it the optimizer's directory of a pair, which contains no weights? */
static bool is_half(struct uckpt *u, const char *path)
{
	const char *base = roots_base(u, path), *const *pair = NULL;
	char *parent;

	for (size_t i = 0; !pair && i < DCP_PAIRS; i++)
		if (base > path && strcmp(base, names_dcp_pairs[i][1]) == 0)
			pair = names_dcp_pairs[i];
	parent = pair ? strndup(path, (size_t)(base - path - 1)) : NULL;
	pair = parent ? detect_dcp_pair(u, parent, NULL) : NULL;
	free(parent);
	return pair && strcmp(base, pair[1]) == 0;
}

/* Is it the directory from which torch's HuggingFaceStorageWriter consolidated the weights in
 * its parent? */
static bool is_consolidated(struct uckpt *u, const char *path)
{
	const char *base = roots_base(u, path);
	char *parent = base > path && strcmp(base, "sharded") == 0
			       ? strndup(path, (size_t)(base - path - 1))
			       : NULL;
	const bool is = parent && detect(u, parent, NULL) == DIR_WEIGHTS;

	free(parent);
	return is;
}

bool detect_has_views(struct uckpt *u, const char *path)
{
	const enum dir_kind kind = detect(u, path, NULL);

	return (kind > DIR_STAGE0 && !(kind == DIR_DCP && (is_half(u, path) || is_consolidated(u, path)))) ||
	       (kind == DIR_STAGE0 && stage0_look(u, path, NULL));
}

/* Return the kind of a file, or NULL; earlier entries of `kinds` are more specific. */
static const struct kind *find_kind(const char *name)
{
	for (size_t k = 0; k < COUNT(kinds); k++)
		if (fnmatch(kinds[k].pattern, name, 0) == 0)
			return &kinds[k];
	return NULL;
}

/* Refuse a file. */
static int refuse_file(struct uckpt *u, const char *path, struct errmsg *err)
{
	const struct kind *const k = find_kind(roots_base(u, path));

	return errmsg_set(err, k ? -ENOTSUP : -ENOTDIR, "%s: %s", path,
			  k ? k->text : "not a directory, and not a pack");
}

/* Refuse a directory by its most specific file; 0 if no file is known. */
static int refuse_dir(struct uckpt *u, const char *path,
		      const struct dirlist *dir, struct errmsg *err)
{
	const struct kind *k, *best = NULL;
	struct errmsg why = { "" };
	int rc = 0;

	for (size_t i = 0; i < dir->n; i++) {
		k = find_kind(dir->v[i].name);
		if (!k || (best && k >= best))
			continue;
		best = k;
		rc = errmsg_set(err, -ENOTSUP, "%s/%s: %s", path, dir->v[i].name, k->text);
	}
	if (best && strcmp(best->pattern, MODEL_STATES) == 0 && dirlist_find(dir, STAGE0_FIRST) &&
	    !dirlist_find(dir, "zero") && !stage0_look(u, path, &why) && *why.text)
		rc = errmsg_set(err, -EBADMSG, "%s", why.text);
	return rc;
}

/* Refuse an entry of a run that should be a tag: an unreadable pack, or a directory with model
 * states. 0 for any other entry. */
static int refuse_entry(struct uckpt *u, const char *path,
			const struct dirlist_entry *e, struct errmsg *err)
{
	char *name = S_ISDIR(e->type) || S_ISREG(e->type) ? io_tag_name(e->name, e->type) : NULL;
	struct errmsg why = { "" };
	struct dirlist dir = { 0 };
	char *child;
	int rc;

	if (!name)
		return 0;
	if (asprintf(&child, "%s/%s", path, name) < 0) {
		free(name);
		return errmsg_nomem(err, path);
	}
	rc = io_list(u, child, 0, &dir, &why);
	if (!rc) {
		for (size_t i = 0; !rc && i < dir.n; i++)
			if (fnmatch(MODEL_STATES, dir.v[i].name, 0) == 0)
				rc = refuse_dir(u, child, &dir, err);
		dirlist_done(&dir);
	} else {
		rc = beneath_is_missing(rc)
			     ? 0
			     : errmsg_set(err, rc, "%s", why.text);
	}
	free(child);
	free(name);
	return rc;
}

int detect_explain(struct uckpt *u, const char *path, struct errmsg *err)
{
	struct dirlist dir = { 0 };
	int rc;

	if (detect_is_universal(u, path))
		return errmsg_set(err, -ENOTSUP, "%s: already a universal checkpoint: load it"
				  " as it is",
				  path);
	rc = io_list(u, path, 0, &dir, err);
	if (rc)
		return rc == -ENOTDIR ? refuse_file(u, path, err) : rc;
	rc = refuse_dir(u, path, &dir, err);
	for (size_t i = 0; !rc && i < dir.n; i++)
		rc = refuse_entry(u, path, &dir.v[i], err);
	dirlist_done(&dir);
	if (rc)
		return rc;
	return errmsg_set(err, -ENOENT, "%s: no DeepSpeed checkpoint here: found neither"
			  " *_optim_states.pt files, nor .metadata of a"
			  " distributed checkpoint, nor directories with such"
			  " files, nor Hugging Face weights",
			  path);
}
