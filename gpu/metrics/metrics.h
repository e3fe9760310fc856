/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_METRICS_H
#define UCTRAIN_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

/* The figures of a step, reported by rank 0.  A negative figure is unknown and is not reported. */
struct metrics_step {
	uint64_t step; /* from 1 */
	bool skipped;  /* fp16: gradients overflowed, no update */
	double loss;   /* mean over ranks and micro-batches, before the update */
	double lr;
	double grad_norm; /* before clipping */
	double tokens_per_second;
	double memory;     /* bytes; the largest resident set of a rank */
	double loss_scale; /* for fp16 */
	double valid_loss;
	double tflops;                                     /* of the model, per rank */
	double mfu;                                        /* the fraction of a device's peak */
	double device_memory;                              /* bytes; the largest of all ranks */
	double data_seconds, pass_seconds, update_seconds; /* on rank 0 */
	double save_seconds;                               /* time of the save before this step */
};

/* The tags under which TensorBoard users and ucplot look for losses. */
#define METRICS_TRAIN_LOSS "train/loss"
#define METRICS_VALID_LOSS "valid/loss"

/* The names of a figure in METRICS_CSV and in event files, in the order of columns after "step". */
struct metrics_figure {
	const char *column, *tag; /* tag NULL: not in event files */
	size_t offset;            /* of a double in struct metrics_step */
};

#define METRICS_FIGURES 14
extern const struct metrics_figure metrics_figures[METRICS_FIGURES];

/*
 * A run's figures: a line or a progress bar with the time left on the terminal, and in
 * LOG_DIR/RUN_NAME, which is created, METRICS_CSV (columns step and loss first) and a TensorBoard
 * event file.  A resumed run continues the CSV: rows of `first_step` and later are replaced; a
 * new event file invalidates those steps in earlier ones.
 */
#define METRICS_CSV "metrics.csv"

struct metrics;

struct metrics_options {
	const char *log_dir; /* NULL: terminal only */
	const char *run_name;
	uint64_t first_step, last_step;
};

int metrics_open(struct metrics **out, const struct metrics_options *o, struct errmsg *err);
/* Report a step.  Steps must ascend; the step is in the files on return. */
int metrics_add(struct metrics *m, const struct metrics_step *s, struct errmsg *err);
/* Report that the checkpoint of `step` is complete in `dir`. */
void metrics_saved(struct metrics *m, const char *dir, uint64_t step);
/* Close the files and free `m`, also after an error.  `m` may be NULL. */
int metrics_close(struct metrics *m, struct errmsg *err);

#endif
