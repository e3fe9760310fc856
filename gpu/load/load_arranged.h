/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_ARRANGED_H
#define UCTRAIN_LOAD_ARRANGED_H

#include <stdbool.h>
#include <stdint.h>

struct backend;
struct errmsg;
struct fragment;
struct gpt2_param;
struct load_tensor;
struct naming_tensor;
struct upload;

/* A tensor that a checkpoint has in another order than this program. */
struct load_arranged {
	struct load_tensor *from; /* it has been begun */
	const struct naming_tensor *tensor;
	/* The rows of query_key_value are queries, keys and values of each of so
	 * many ranks, one rank after the other; 0: as `tensor` says. */
	unsigned ranks;
	struct upload *host; /* to host memory, without other pieces in it */
};

/* Is the order another one? */
bool load_arranged_is(const struct load_arranged *a);

/*
 * Read the fragment `f` of this rank's part `p` to `part` on the device, as
 * pieces of the tensor's rows that hold it.  Takes three times the fragment's
 * bytes of host memory at most.
 */
int load_arranged_send(const struct load_arranged *a,
		       const struct gpt2_param *p, const struct fragment *f,
		       struct backend *b, float *part, struct errmsg *err);

#endif
