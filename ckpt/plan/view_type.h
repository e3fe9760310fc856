/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VIEW_TYPE_H
#define UCKPT_VIEW_TYPE_H

#include <stdbool.h>
#include <stddef.h>

enum plan_kind {
	/* The universal tree, as ds_to_universal.py and hf_to_universal.py write
	 * it. */
	PLAN_UNIVERSAL,
	/* Only weights, as zero_to_fp32.py writes them, in the root:
	 * model.safetensors with the files that transformers reads beside it,
	 * or pytorch_model.bin. */
	PLAN_HF,
	PLAN_FP32,
	/* A PyTorch distributed checkpoint. */
	PLAN_DCP,
	/* The ZeRO files, in the root, that another number of ranks would have
	 * saved. */
	PLAN_RESHARD,
	PLAN_KINDS
};

/*
 * A type of trees, which the name of a view encodes:
 *
 *	<tag>_universal, <tag>_hf, <tag>_fp32, <tag>_dcp
 *	<tag>_dp<ranks>, <tag>_dp<ranks>_z<stage>	PLAN_RESHARD
 */
struct view_type {
	enum plan_kind kind;
	/* PLAN_RESHARD: number of data-parallel ranks, and ZeRO stage (0: that
	 * of the checkpoint).  See reshard.h. */
	unsigned ranks;
	unsigned stage;
};

/* Kinds below this one have a single view per tag. */
#define VIEW_KINDS PLAN_RESHARD

/* Room for the longest suffix and its terminating null byte. */
#define VIEW_SUFFIX_MAX 32

/* Parse a kind as options name it: universal, hf, fp32, dcp, zero.  Returns false
 * for other text. */
bool view_type_parse_kind(const char *text, enum plan_kind *out);

/* Parse "<ranks>" or "<ranks>_z<stage>".  False if `text` is neither. */
bool view_type_parse_ranks(const char *text, struct view_type *out);

bool view_type_equal(const struct view_type *a, const struct view_type *b);

/* Write the suffix that a view's name adds to its tag's name. */
void view_type_suffix(const struct view_type *t, char suffix[VIEW_SUFFIX_MAX]);

/* Split a view's name into its type and the length of the tag's name.  False if
 * `name` is not the name of a view. */
bool view_type_parse(const char *name, size_t *tag_len, struct view_type *out);

#endif
