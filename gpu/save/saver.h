/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SAVER_H
#define UCTRAIN_SAVER_H

#include <stdbool.h>
#include <stdint.h>

struct config;
struct errmsg;
struct loss_scaler;
struct zero;

struct save_options {
	const char *dir;    /* of the run; created if missing */
	unsigned keep_last; /* number of checkpoints kept up to this step; 0: all */
	const struct config *config;
	const struct loss_scaler *scaler;
	uint64_t step; /* steps done, including skipped ones */
	uint64_t skipped;
	uint64_t vocab_rows; /* vocabulary size without padding; 0: unknown */
};

/*
 * Saves checkpoints in the format of DeepSpeed 0.19.8: DIR/global_step<N>/ with one or two files
 * per rank, and its name in DIR/latest.  A save either publishes the whole checkpoint, replacing
 * one of the same name, or fails and changes nothing.
 *
 * A background save copies device and host state to host memory, as many bytes as this rank's
 * files have, and a thread writes them while training goes on.  If that memory cannot be allocated,
 * training waits for the save instead.
 *
 * All functions are collective: all ranks see the same directory and get the same results.
 */
struct saver;

int saver_new(struct saver **out, struct zero *z, bool background, struct errmsg *err);

/* Allocate that memory before training begins: pinning it takes as long as many steps.  `o` is
 * like that of any later save. */
int saver_prepare(struct saver *s, const struct save_options *o, struct errmsg *err);

/* Finish the previous save and start one.  A foreground save is complete on return. */
int saver_begin(struct saver *s, const struct save_options *o, struct errmsg *err);

/* Advance the save in progress; with `wait`, finish it.  Returns the save's error, once. */
int saver_poll(struct saver *s, bool wait, struct errmsg *err);

/* The step of the last complete checkpoint; 0: none. */
uint64_t saver_saved(const struct saver *s);

/* Free it.  The caller must have called saver_poll with `wait` before. */
void saver_free(struct saver *s);

#endif
