/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_FORM_H
#define UCTRAIN_FORM_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/arena.h"
#include "ckpt/zero/partition.h"
#include "gpu/model/naming.h"

struct backend;
struct errmsg;
struct zero;

/* A parameter that a stage has in its files, and no use for. */
#define FORM_DEAD SIZE_MAX

struct form_tensor {
	struct naming_tensor t;
	size_t param;   /* of the model, or FORM_DEAD */
	float *weights; /* the masters, on the host; NULL: this rank writes no
			 * copy of the weights, or they are in the device's
			 * memory */
};

/* A parameter group: tensors end to end, partitioned over data-parallel ranks. */
struct form_group {
	size_t n;
	size_t *tensors; /* their numbers */
	struct partition partition;
	/* This rank's part, with padding. */
	float *master, *exp_avg, *exp_avg_sq;
};

/*
 * A rank's training state as its files have it.  Hugging Face's form is that of the
 * device's memory, which it borrows.  Megatron's is another: it has copies on the
 * host, which take as much memory as a copy of the state.
 */
struct form {
	struct naming naming;
	const struct zero *zero;
	struct backend *from; /* the owner of the groups' memory; NULL: host
			       * memory, owned by the form */
	struct arena memory;
	struct form_tensor *tensors; /* in the order of modules */
	size_t ntensors;
	struct form_group *groups;
	unsigned ngroups;
};

/* Collective: all ranks get the same result. -ENOMEM. */
int form_init(struct form *f, const struct zero *z, const struct naming *n,
	      struct errmsg *err);
void form_done(struct form *f);

#endif
