/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SAVER_H
#define UCTRAIN_SAVER_H

#include <stdbool.h>
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
	uint64_t words; /* of the vocabulary, the rest is padding; 0: unknown */
};

/*
 * Saves checkpoints as DeepSpeed 0.19.8 does: DIR/global_step<N>/ with a file
 * or two of each rank, and its name in DIR/latest.  One appears whole, or there
 * is an error and everything is as before; a checkpoint of that name that is
 * there already is replaced.
 *
 * In the background it is while training goes on: what is to be saved is copied
 * to memory of the host, which takes as much of it as this rank's files have
 * bytes, and a thread writes them.  Where that memory cannot be had, training
 * waits instead.
 *
 * All of it is called by all ranks, which see the same directory; all get the
 * same results.
 */
struct saver;

int saver_new(struct saver **out, struct zero *z, bool background,
	      struct errmsg *err);

/*
 * Have that memory before training begins: where it is pinned for a device,
 * taking it lasts as long as many steps.  `o` is that of any save to come.
 */
int saver_prepare(struct saver *s, const struct save_options *o,
		  struct errmsg *err);

/* Begin to save, when the one before is over; it ends with it, unless in the
 * background. */
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
