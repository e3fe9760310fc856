/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_FEED_H
#define UCTRAIN_FEED_H

#include <stdbool.h>
#include <stdint.h>

struct errmsg;
struct run;

/* The tokens of this rank's passes, on their way to the device, through memory that the
 * device copies from. */
struct feed;

/* For a run whose backend, networks and tokens are open, from its next step on. -ENOMEM;
 * feed_free takes what there is then, too. */
int feed_new(struct feed **out, const struct run *r, struct errmsg *err);
void feed_free(struct feed *f);

/*
 * Queue the copy of a batch.  Returns what network_train takes for the first pass, on
 * the device; those of the others follow, network_ints apart.  They stay until the next
 * call, which comes after a sync.  Steps are asked for in order, validation batches
 * (`valid`) in any.  If a row could not be read, *unread is the error and *why its
 * message, and the tokens of its pass are 0.
 */
const int32_t *feed_batch(struct feed *f, bool valid, uint64_t batch,
			  int *unread, struct errmsg *why);

/* Read the rows of the step after the one that is queued, which a device computes
 * meanwhile. */
void feed_ahead(struct feed *f, uint64_t step);

#endif
