/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_IMPL_H
#define UCTRAIN_LOAD_IMPL_H

#include <stddef.h>

#include "ckpt/tensor/tensor.h"
#include "gpu/load/load.h"

struct intake;
struct value;

/* Between the files of load. */

/* A kind of checkpoint: where a parameter's elements are. */
struct load_source;

struct load_ops {
	size_t size; /* of the kind's own structure, which begins with that */
	/* Have a look at ->path, for so many ranks.  After an error it is not
	 * closed. */
	int (*open)(struct load_source *s, unsigned ranks, struct errmsg *err);
	/*
	 * Begin to read parameter i's masters (`state` is NULL) or the state
	 * of that name.  -ENOENT if it is not there; the message names it.
	 * ->shape is filled in; flat tensors have one dimension.
	 */
	int (*begin)(struct load_source *s, const char *param,
		     const char *state, struct errmsg *err);
	/* Have elements [first, first + n) of it brought to `to`. */
	int (*send)(struct load_source *s, uint64_t first, size_t n, float *to,
		    struct intake *q, struct errmsg *err);
	void (*end)(struct load_source *s);

	/* Call `see` for each parameter that the optimizer owns; stop at its
	 * first result that is not 0. */
	int (*each)(struct load_source *s,
		    int (*see)(void *ctx, const char *param), void *ctx,
		    struct errmsg *err);
	void (*close)(struct load_source *s); /* all but `s` itself */
};

struct load_source {
	const struct load_ops *ops;
	const char *path;     /* of the tag; borrowed */
	struct tensor tensor; /* what is being read */
	uint64_t bytes, direct;
};

extern const struct load_ops load_zero_ops, load_whole_ops, load_universal_ops;

/* Where the tag is. */
int load_find(const struct load_options *o, char path[PATH_MAX],
	      struct errmsg *err);

/* What is known besides tensors.  Filled in by rank 0, told to all. */
struct load_facts {
	uint64_t step, skipped;  /* of the run */
	uint64_t original_vocab; /* 0: unknown */
	bool has_updates;        /* the next two */
	uint64_t updates;
	int flavor; /* enum optimizer_flavor */
	/* Of the optimizer's first group; NAN where it has none. */
	double lr, beta1, beta2, eps, weight_decay;
	bool has_scaler;
	struct scaler scaler;
};

int load_facts(const struct load_options *o, const char *path,
	       struct load_facts *f, struct errmsg *err);

#endif
