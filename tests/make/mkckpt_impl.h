/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_MKCKPT_IMPL_H
#define TESTS_MKCKPT_IMPL_H

#include "tests/make/mkckpt.h"

/* Shared by the files of mkckpt. */

#define MKCKPT_DS_VERSION "0.19.8"

/* Print why a system call failed, and abort. */
_Noreturn void mkckpt_die(const char *what);
void *mkckpt_must(void *p);
uint64_t mkckpt_numel(const uint64_t *shape, unsigned ndim);

/* Return the numbers of a group's parameters in flat order; the caller frees them. */
size_t *mkckpt_order(const struct mkckpt *c, size_t g, bool round_robin,
		     size_t *n);

/* mkckpt_model.c: make the root of a model-states file; make ds_config. */
struct value *mkckpt_model(struct mkpt *m, const struct mkckpt *c,
			   unsigned rank);
struct value *mkckpt_config(struct mkpt *m, const struct mkckpt *c);

/* Make one tensor of `c->extras`. */
struct value *mkckpt_extra_tensor(struct mkpt *m,
				  const struct mkckpt_extra *e);

/*
 * mkckpt_experts.c.  A rank's view of the model: parameters with their names and shapes on that
 * rank, partitioned over the ranks that have the same ones.  Without experts it is the whole
 * checkpoint.
 */
struct mkckpt_view {
	struct mkckpt c;
	unsigned part; /* the rank's number among those of the group */
	const struct mkckpt *whole;
	unsigned ep;	 /* the expert-parallel rank */
	size_t *params;	 /* number in the whole checkpoint of each of c's parameters */
};
const struct mkckpt *mkckpt_view(struct mkckpt_view *v, struct mkpt *m,
				 const struct mkckpt *c, size_t group,
				 unsigned rank);
uint32_t mkckpt_view_element(const struct mkckpt_view *v, size_t param,
			     unsigned state, uint64_t i);

/* Return the layer that a parameter belongs to by its name, or NULL. */
const struct mkckpt_layer *mkckpt_layer_of(const struct mkckpt *c,
					   const char *name);

/* Add entries about experts to model states; mark the group in an optimizer's param_groups; make
 * the value of ds_zero_partition_groups. */
void mkckpt_set_experts(struct mkpt *m, const struct mkckpt *c,
			struct value *root);
void mkckpt_mark_group(struct mkpt *m, const struct mkckpt *c, size_t g,
		       struct value *group);
struct value *mkckpt_partition_groups(struct mkpt *m, const struct mkckpt *c,
				      unsigned rank);

/* Files of experts: return their number, a root, a path. */
unsigned mkckpt_nexperts(const struct mkckpt *c);
struct value *mkckpt_expert(struct mkpt *m, const struct mkckpt *c,
			    unsigned number);
void mkckpt_expert_path(const struct mkckpt *c, const char *dir,
			unsigned number, char *out);

#endif
