/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_MKCKPT_H
#define TESTS_MKCKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/tensor.h"
#include "tests/make/mkpt.h"

struct view;

/* A parameter that the optimizer owns. */
struct mkckpt_param {
	const char *name;
	unsigned ndim;
	uint64_t shape[4];
	unsigned group; /* ZeRO-3: sub-group */
};

/* A tensor that only the module has (stages 1 and 2): element i is the number
 * (first + i) % 100.  Its storage continues in the same way for `spare`
 * elements before and after it. */
struct mkckpt_extra {
	const char *name;
	enum dtype dtype;
	unsigned ndim;
	uint64_t shape[4];
	uint64_t first, spare;
};

/*
 * A MoE layer: `n` experts, shared by `ep` ranks.  Its parameters have names with the prefix, as in
 * the whole model (ckpt/table/experts.h); a native expert's name contains its number.  Extras can
 * belong to a native expert, too.
 */
struct mkckpt_layer {
	const char *prefix;
	bool fused;
	unsigned n, ep;
	/* Fused: expert order[r * n / ep + i] is the i-th of rank r; NULL if
	 * they are in order. */
	const unsigned *order;
};

enum mkckpt_file { MKCKPT_MODEL, MKCKPT_OPTIM, MKCKPT_EXPERT };
struct mkckpt_view;

/*
 * A checkpoint as DeepSpeed writes it, of any stage, number of ranks, groups
 * and shapes.  Every element is known (mkckpt_element).  Padding is a NaN of
 * its own, so that it is noticed if it is served.
 */
struct mkckpt {
	int stage; /* 1, 2 or 3 */
	unsigned ranks;
	const struct mkckpt_param *params; /* parameters of all groups, in this order */
	size_t nparams;
	size_t ngroups;
	const struct mkckpt_extra *extras;
	size_t nextras;
	unsigned align;   /* stages 1, 2: parameters begin at multiples of it */
	bool round_robin; /* stages 1, 2: round_robin_gradients */
	bool padded;      /* stages 1, 2: fp32 partitions keep their padding */
	bool bf16;        /* file names begin with bf16_ */
	uint64_t seed;    /* seed of the elements' values */

	/* Layers of experts.  The groups of their parameters contain no others. */
	const struct mkckpt_layer *layers;
	size_t nlayers;
	bool data_first; /* use_data_before_expert_parallelism */
	const struct mkckpt_view *view; /* set while files are written */

	/* With model parallelism: a checkpoint for each rank, all written to one directory.  The
	 * degrees are recorded unless 0. */
	unsigned mp, tp, pp;
	unsigned mp_world; /* recorded mp_world_size; 0: tp * pp */
	/* Computes elements instead of `seed`, or NULL. */
	uint32_t (*element)(const struct mkckpt *c, size_t param,
			    unsigned state, uint64_t i);

	/* Called with each file's root before it is written, to extend or damage it.  For files of
	 * experts `rank` counts the files, layer by layer. */
	void (*edit)(struct mkpt *m, struct value *root, enum mkckpt_file kind,
		     unsigned rank, void *ctx);
	void *ctx;
};

/* States of each parameter: 0 fp32, 1 exp_avg, 2 exp_avg_sq.  There is also
 * a step, a 0-d tensor of 4.0. */
#define MKCKPT_STATES 3
extern const char *const mkckpt_state_names[MKCKPT_STATES];

/* Return the bits of an element. */
uint32_t mkckpt_element(const struct mkckpt *c, size_t param, unsigned state,
			uint64_t i);

/* Write the files into `dir`, which exists. */
void mkckpt_write(const struct mkckpt *c, const char *dir);

/* Write the path of one of the files to `out` (PATH_MAX bytes). */
void mkckpt_path(const struct mkckpt *c, const char *dir, enum mkckpt_file kind,
		 unsigned rank, char *out);

/* Return whether all files of the view have the right elements; if not, `why` gets the reason. */
bool mkckpt_check(const struct mkckpt *c, struct view *v, char *why,
		  size_t why_len);

/* Create a directory inside one that the process owns below $TMPDIR; remove it with everything in
 * it. Anything left is removed when the process ends, even if it is killed. */
char *mkckpt_new_dir(void);
void mkckpt_free_dir(char *dir);

/* Run shell commands in a directory; abort if one fails. */
void mkckpt_shell(const char *dir, const char *commands);

/* A simple checkpoint: two ranks, three parameters in two groups, with shapes that two ranks
 * cannot divide evenly, and tensors of the module. */
struct mkckpt mkckpt_small(int stage);

#endif
