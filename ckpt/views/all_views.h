/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ALL_VIEWS_H
#define UCKPT_ALL_VIEWS_H

#include <stdbool.h>
#include <stddef.h>

struct errmsg;
struct errmsg_sink;
struct view;

enum view_kind {
	/* The universal tree, as ds_to_universal.py and hf_to_universal.py write
	 * it. */
	VIEW_UNIVERSAL,
	/* Only weights, as zero_to_fp32.py writes them, in the root:
	 * model.safetensors with the files that transformers reads beside it,
	 * or pytorch_model.bin. */
	VIEW_HF,
	VIEW_FP32,
	/* A PyTorch distributed checkpoint. */
	VIEW_DCP,
	/* The ZeRO files, in the root, that another number of ranks would have
	 * saved. */
	VIEW_RECUT,
	VIEW_KINDS
};

/* Options that only some views have: struct view_options. */
enum view_takes {
	TAKES_DTYPE = 1u << 0,
	TAKES_SHARD_SIZE = 1u << 1,
	TAKES_DCP = 1u << 2,
	TAKES_ANY_STAGE = 1u << 3,
	TAKES_RANKS = 1u << 4, /* a number of ranks, and maybe a stage */
};

/* A kind of views.  Its own structure begins with a struct view.  All functions except `make`
 * may be NULL. */
struct view_ops {
	const char *suffix; /* a view's name: the tag's, this suffix, and perhaps a number of
	                     * ranks */
	const char *option; /* the word for option view= */
	unsigned takes;     /* TAKES_* */
	bool ranked;        /* there is a view for each number of ranks, and unless TAKES_RANKS
	                     * one without a number */
	size_t size;        /* of the kind's own structure */
	/* Fill in the rest of a zeroed structure; after a failure `close` frees the parts made
	 * so far.  view_close frees the structure. */
	int (*make)(struct view *v, struct errmsg *err);
	void (*close)(struct view *v);
	int (*check)(struct view *v, struct errmsg *err);
	void (*warm)(struct view *v);
	void (*warn)(struct view *v, const struct errmsg_sink *to);
	void (*lack)(struct view *v, const struct errmsg_sink *to); /* view_lack */
};

/* All views.  (Completions and manuals have their own lists.) */
extern const struct view_ops *const all_views[VIEW_KINDS];

/* A type of trees, which the name of a view encodes: <tag>_universal, <tag>_dcp<ranks>,
 * <tag>_dp<ranks>, <tag>_dp<ranks>_z<stage>. */
struct view_type {
	enum view_kind kind;
	/* `ranked`: the number of ranks, or 0; of a re-cut also the ZeRO stage (0: that of
	 * the checkpoint), see recut.h. */
	unsigned ranks;
	unsigned stage;
};

/* Room for the longest suffix, and for the longest list, and a terminating null byte. */
#define VIEW_SUFFIX_MAX 32
#define VIEW_LIST_MAX 64

/* List the kinds that take one of these options (0: all) as they are named after
 * `prefix`: "view=hf or view=fp32". */
void view_type_list(unsigned takes, const char *prefix, char out[VIEW_LIST_MAX]);

/* Parse a kind as options name it.  Returns false for other text. */
bool view_type_parse_kind(const char *text, enum view_kind *out);

/* Parse "<ranks>" or "<ranks>_z<stage>".  False if `text` is neither. */
bool view_type_parse_ranks(const char *text, struct view_type *out);

bool view_type_equal(const struct view_type *a, const struct view_type *b);

/* Write the suffix that a view's name adds to its tag's name. */
void view_type_suffix(const struct view_type *t, char suffix[VIEW_SUFFIX_MAX]);

/* Split a view's name into its type and the length of the tag's name.  False if
 * `name` is not the name of a view. */
bool view_type_parse(const char *name, size_t *tag_len, struct view_type *out);

#endif
