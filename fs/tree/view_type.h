/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_VIEW_TYPE_H
#define UCFS_VIEW_TYPE_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/plan/plan.h"

/*
 * The type of a view, which the view's name encodes:
 *
 *	<tag>_universal, <tag>_hf, <tag>_fp32
 *	<tag>_dp<ranks>, <tag>_dp<ranks>_z<stage>	PLAN_RESHARD
 */
struct view_type {
	enum plan_kind kind;
	unsigned ranks; /* PLAN_RESHARD: data-parallel ranks */
	unsigned stage; /* the same: ZeRO stage; 0: the tag's own */
};

/* Kinds below this one have a single view per tag. */
#define VIEW_KINDS PLAN_RESHARD

/* Room for the longest suffix and its terminating null byte. */
#define VIEW_SUFFIX_MAX 32

bool view_type_equal(const struct view_type *a, const struct view_type *b);

/* Write the suffix that a view's name adds to its tag's name. */
void view_type_suffix(const struct view_type *t, char suffix[VIEW_SUFFIX_MAX]);

/* Split a view's name into its type and the length of the tag's name.  False if
 * `name` is not the name of a view. */
bool view_type_parse(const char *name, size_t *tag_len, struct view_type *out);

/* Parse "<ranks>" or "<ranks>_z<stage>".  False if `text` is neither. */
bool view_type_parse_ranks(const char *text, struct view_type *out);

/* Encode a type in VIEW_TYPE_BITS bits: non-zero for PLAN_RESHARD, 0 for the
 * universal view.  Other types have no number. */
#define VIEW_TYPE_BITS 15
unsigned view_type_number(const struct view_type *t);
struct view_type view_type_of_number(unsigned number);

#endif
