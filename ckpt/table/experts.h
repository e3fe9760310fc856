/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_EXPERTS_H
#define UCKPT_EXPERTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct errmsg;
struct value;

/* The place of an expert: its expert-parallel rank, and its index there. */
struct expert_place {
	unsigned rank, index;
};

/*
 * The experts of one MoE layer.  Expert-parallel ranks hold `local` of them
 * each, under the same names on every rank:
 *
 *   native  `prefix`I`rest`	of local expert I, which is expert
 *				rank * local + I of the whole
 *   fused   `prefix`.w1, .w2, .w3 (AutoEP): all of a rank's experts, one after
 *				the other in the order of `places`
 */
struct expert_layer {
	const char *prefix;
	bool fused;
	unsigned n;     /* experts on all ranks */
	unsigned local; /* number on each rank; native: 0 until the parameters are known */
	unsigned degree; /* fused: number of ranks, of which several may have an expert */
	/* Fused: the first place of each expert, and the expert at each place, rank after rank;
	 * NULL: experts are numbered rank after rank. */
	const struct expert_place *places;
	unsigned *numbers;
	struct value *maps; /* fused: affine maps by parameter, of those that are not placed so, or
	                     * have replicas */
	uint32_t maps_sum;  /* CRC-32 of all affine maps */
	int64_t ep; /* fused: the expert-parallel rank of the file; -1 if not
		     * recorded */
	unsigned lanes; /* number of tensor-parallel ranks that whole experts are spread over; 1:
	                 * each tensor-parallel rank has its slices of all experts */
};

/* The MoE layers of a model, by number. */
struct experts {
	struct expert_layer *layers;
	size_t n;
	/* Consecutive data-parallel ranks hold the same experts; otherwise,
	 * consecutive ones hold the different experts. */
	bool data_first;
};

#define EXPERTS_LAYERS_MAX 65536u
#define EXPERTS_MAX 1000000u /* in all layers together */

/* Longer names are never taken for an expert's parameter. */
#define EXPERT_NAME_MAX 512

/*
 * Read the layers that the object `root` of model-states file `file` lists in
 * `num_experts`. AutoEP's layers are complete; of native layers only `n` is set.
 * Memory comes from the arena. -EBADMSG or -ENOTSUP, with the layer's number.
 */
int experts_init(struct experts *x, struct arena *a, const struct value *root,
		 bool zero3, const char *file, struct errmsg *err);

/* Do two ranks agree on the experts, apart from the ranks' own numbers? */
bool experts_equal(const struct experts *a, const struct experts *b);

/* Return how many ranks share the layer's experts. */
unsigned experts_degree(const struct expert_layer *l);

/* Return the place of an expert, the first one if several ranks have it. */
struct expert_place experts_place(const struct expert_layer *l, unsigned expert);

/* Return the number, in the whole model, of the expert at a place. */
unsigned experts_number(const struct expert_layer *l, unsigned rank, unsigned index);

/* The suffixes of the names of a fused layer's parameters. */
#define EXPERTS_FUSED 3
extern const char *const experts_fused[EXPERTS_FUSED];

/* Does a name look like that of a native expert's parameter? */
bool experts_is_native(const char *name);

/* Is `name` a parameter of the layer? If so, set its local expert (0 if fused)
 * and the rest of the name. */
bool experts_parse(const struct expert_layer *l, const char *name,
		   unsigned *expert, const char **rest);

/* Format the name of a parameter of expert `expert` in the whole model, as in the expert's file.
 * `out` has EXPERT_NAME_MAX bytes. */
void experts_key(const struct expert_layer *l, unsigned expert, const char *rest, char *out);

/* Return the length of the prefix in a key of a native expert's file; 0 if it is not a key of
 * expert `expert`. */
size_t experts_prefix_len(const char *key, unsigned expert);

#endif
