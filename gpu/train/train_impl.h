/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TRAIN_IMPL_H
#define UCTRAIN_TRAIN_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu/model/gpt2.h"
#include "gpu/model/network.h"
#include "gpu/zero/loss_scaler.h"
#include "gpu/zero/zero.h"

struct backend;
struct comm;
struct config;
struct errmsg;
struct metrics;
struct saver;
struct tokens;

/* What train.c (a run's beginning and end) and train_steps.c share. */
struct run {
	const struct config *config;
	struct comm *comm;
	struct gpt2 model;
	struct backend *backend;
	struct zero zero;
	struct network_weights weights;
	struct network *network;
	struct tokens *tokens;
	struct scaler scaler;
	struct metrics *metrics; /* of rank 0 */
	/* A batch is `passes` passes through the network on every rank, each of
	 * `pass_rows` rows: its micro-batches, or every row by itself. */
	unsigned passes, pass_rows;
	int32_t *rows;           /* of one pass */
	uint64_t step;           /* done, skipped ones among them */
	uint64_t skipped;
	uint64_t words;   /* as the checkpoint says; 0: it does not */
	uint64_t resumed; /* from this step; 0: it began anew */
	bool saves;       /* there is a directory that can be written */
	struct saver *saver;
};

/* All steps that are left, or until a signal: as train_run. */
int train_steps(struct run *r, struct errmsg *err);

#endif
