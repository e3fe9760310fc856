/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SAVE_H
#define UCTRAIN_SAVE_H

#include <stdint.h>

struct config;
struct errmsg;
struct scaler;
struct zero;

struct save_options {
	const char *dir;    /* of the run; made if it is not there */
	unsigned keep_last; /* checkpoints up to this step; 0: all */
	const struct config *config;
	const struct scaler *scaler;
	uint64_t step; /* done, skipped ones among them */
	uint64_t skipped;
};

/*
 * Save a checkpoint as DeepSpeed 0.19.8 does: DIR/global_step<N>/ with a file
 * or two of each rank, and its name in DIR/latest.  It appears whole, or there
 * is an error and everything is as before; a checkpoint of that name that is
 * there already is replaced.  Called by all ranks, which see the same
 * directory; all get the same result.
 */
int save_checkpoint(struct zero *z, const struct save_options *o,
		    struct errmsg *err);

#endif
