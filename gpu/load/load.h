/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_H
#define UCTRAIN_LOAD_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/errmsg.h"
#include "gpu/zero/loss_scaler.h"

struct zero;

struct load_options {
	const char *dir;   /* of the run, or of a tag */
	const char *tag;   /* NULL: what `latest` or `latest_universal` names */
	bool universal;    /* a universal checkpoint: converted, or mounted */
	bool no_optimizer; /* parameters only; the optimizer begins anew */
	bool ignore_missing; /* states that are not there begin from zero */
	bool scheduled;      /* learning rates are not the checkpoint's */
};

struct load_result {
	char path[PATH_MAX]; /* of the tag's directory */
	uint64_t step, skipped;
	uint64_t words; /* of the vocabulary, the rest is padding; 0: unknown */
	bool has_scaler; /* of fp16, and the checkpoint had one */
	struct scaler scaler;
	bool has_updates;          /* the optimizer's step was there */
	uint64_t missing;          /* states that begin from zero ... */
	struct errmsg first;       /* ... and the first of them; "" if none */
	uint64_t bytes;            /* of tensors, that this rank has read ... */
	uint64_t direct;           /* ... of them from shards, past the mount */
	uint64_t gds;              /* ... of them by GPUDirect Storage */
	struct errmsg gds_failure; /* its first; "" if none */
	double seconds;            /* that it took */
};

/*
 * Continue from a checkpoint: fill in masters, moments, the count of updates
 * and the kind of Adam with its parameters, and publish the weights.  From ZeRO
 * shards of as many ranks as there are, or from a universal checkpoint on any
 * number of ranks; each rank reads what it keeps.
 *
 * Called by all ranks; all get the same result, but for what this rank has read,
 * and how long that took.
 * -ENOENT, with the name, for what is not there, -EINVAL for a checkpoint of
 * another model or of other ranks, or what reading it says.
 */
int load_checkpoint(struct zero *z, const struct load_options *o,
		    struct load_result *got, struct errmsg *err);

#endif
