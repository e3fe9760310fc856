/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SAVER_H
#define UCTRAIN_SAVER_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/save.h"

struct errmsg;
struct zero;

/*
 * Saves checkpoints while training goes on: what is to be saved is copied to
 * memory of the host, which takes as much of it as this rank's files have
 * bytes, and a thread writes them.  Where that memory cannot be had, or is not
 * wanted, training waits instead.  Like save_checkpoint all of it is called by
 * all ranks, which get the same results.
 */
struct saver;

int saver_new(struct saver **out, struct zero *z, bool background,
	      struct errmsg *err);

/* Begin to save, when the one before is over. */
int saver_begin(struct saver *s, const struct save_options *o,
		struct errmsg *err);

/* How a save that is under way has gone on, or with `wait` how it ends: an
 * error is that of the save and is told once. */
int saver_poll(struct saver *s, bool wait, struct errmsg *err);

/* The step of the last checkpoint that is whole; 0: none. */
uint64_t saver_saved(const struct saver *s);

/* After saver_poll with `wait`. */
void saver_free(struct saver *s);

#endif
