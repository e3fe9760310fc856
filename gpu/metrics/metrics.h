/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_METRICS_H
#define UCTRAIN_METRICS_H

#include <stdbool.h>
#include <stdint.h>

struct errmsg;

/* What is known after a step, and told by rank 0. */
struct metrics_step {
	uint64_t step; /* from 1 */
	double loss; /* mean over ranks and micro-batches, before the update */
	double lr;
	double grad_norm;  /* before clipping */
	double loss_scale; /* fp16 */
	bool skipped;      /* fp16: gradients overflowed, nothing updated */
	double tokens_per_second;
	uint64_t memory; /* bytes, the largest resident set of a rank */
	bool has_valid;
	double valid_loss;
};

/*
 * A run's figures: a line (or a progress bar) on the terminal, and under
 * LOG_DIR/RUN_NAME, which is made, METRICS_CSV (columns step and loss first)
 * and a TensorBoard event file.  A run that resumes continues the CSV: what
 * was there of `first_step` and later is replaced, and a new event file says
 * the same.
 */
#define METRICS_CSV "metrics.csv"

/* Tags in the event file that others look for. */
#define METRICS_TRAIN_LOSS "train/loss"
#define METRICS_VALID_LOSS "valid/loss"

struct metrics;

struct metrics_options {
	const char *log_dir; /* NULL: the terminal is all */
	const char *run_name;
	uint64_t first_step, last_step;
};

int metrics_open(struct metrics **out, const struct metrics_options *o,
		 struct errmsg *err);
/* Steps come in order; each is in the files on return. */
int metrics_add(struct metrics *m, const struct metrics_step *s,
		struct errmsg *err);
/* Frees it in any case; NULL is fine. */
int metrics_close(struct metrics *m, struct errmsg *err);

#endif
