/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_WORLD_H
#define TESTS_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytes.h"
#include "ckpt/table/merge_rules.h"
#include "tests/make/mkckpt.h"

#define WORLD_TP_MAX 4
#define WORLD_PP_MAX 3
#define WORLD_TENSORS_MAX 32
#define WORLD_EXTRAS_MAX 4
#define WORLD_PARTS_MAX 3
#define WORLD_DIMS_MAX 4
#define WORLD_VOCAB_ROWS 3 /* original_vocab_size */

/*
 * A tensor of the model.  A partitioned tensor consists of parts along `dim`, each of which joins
 * the ranks' shares end to end: widths[part][rank].
 */
struct world_tensor {
	char name[32];
	enum merge_rule rule;
	unsigned stage; /* pipeline stage */
	unsigned group;
	bool tied;   /* the last stage also has it, with other elements */
	bool listed; /* a pattern declares that later stages repeat it */
	bool vocab;
	unsigned ndim, dim;
	uint64_t shape[WORLD_DIMS_MAX];
	size_t parts;
	uint64_t widths[WORLD_PARTS_MAX][WORLD_TP_MAX];
	/* MERGE_AFFINE: parts that every rank has whole. */
	bool copied[WORLD_PARTS_MAX];
	/* MERGE_SUB_PARAMS before version 0.4: the parts are only counted;
	 * the size of dimension `open` is left open (-1), unless it is
	 * `dim`. */
	bool counted;
	unsigned open;

	/* Set by world_cut for each rank's slice: its shape, and for each of
	 * its elements the element of the whole tensor. */
	uint64_t numel;
	uint64_t shapes[WORLD_TP_MAX][WORLD_DIMS_MAX];
	uint64_t *place[WORLD_TP_MAX];
};

/* A tensor that only the modules of pipeline stages [stage, last] have. */
struct world_extra {
	char name[32];
	struct mkckpt_extra as;
	unsigned stage, last;
};

/*
 * A model whose every element is known, whole and in each rank's slices.  The caller describes it,
 * world_cut partitions it, and world_write writes it; world_file makes the expected universal
 * files.  This module does not merge slices.
 */
struct world {
	unsigned tp, pp;
	uint64_t seed;    /* seed of the elements' values */
	struct mkckpt as; /* stage, ranks, groups, ...; degrees to record */
	bool before_04;   /* an old universal_checkpoint_version: no shard widths */
	bool any_stage;   /* expect the tree for engines of any stage */
	struct world_tensor v[WORLD_TENSORS_MAX];
	size_t n;
	struct world_extra extras[WORLD_EXTRAS_MAX];
	size_t nextras;
};

/* Partition the elements of a tensor among the ranks. */
void world_cut(struct world_tensor *t, unsigned tp);
void world_done(struct world *w);

/* Write all ranks' files into `dir`, which exists. */
void world_write(const struct world *w, const char *dir);

/* Return the universal_checkpoint_info of its model-states files. */
struct value *world_info(struct mkpt *m, const struct world *w);

/* Return a tensor's entry under parameter_with_sub_params: its shape, or with `spelled` the newer
 * files' list of parts. */
struct value *world_sub_param_shape(struct mkpt *m,
				    const struct world_tensor *t, bool spelled);

/* Names of the files of an optimizer's parameter: its states, then the step.  world_nfiles returns
 * the number of files of `t`; 0 if it is not in the tree. */
#define WORLD_FILES (MKCKPT_STATES + 1)
extern const char *const world_file_names[WORLD_FILES];
size_t world_nfiles(const struct world *w, const struct world_tensor *t);

/* Append file `i` of a parameter as the converter writes it, byte for byte. */
void world_file(const struct world *w, const struct world_tensor *t, size_t i,
		struct bytebuf *out);

/* Append fp32.pt of a tensor that only modules have. */
void world_extra_file(const struct world *w, const struct world_extra *e,
		      struct bytebuf *out);

#endif
