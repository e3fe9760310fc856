/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TRAIN_IMPL_H
#define UCTRAIN_TRAIN_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/topology.h"
#include "gpu/model/gpt2.h"
#include "gpu/model/network.h"
#include "gpu/save/save_lock.h"
#include "gpu/zero/optimizer.h"
#include "gpu/zero/zero.h"

struct config;
struct feed;
struct metrics;
struct saver;
struct tokens;

/* What a step's time is spent on. */
enum phase {
	PHASE_DATA,
	PHASE_AHEAD,  /* the next step's data */
	PHASE_PASSES, /* includes the data */
	PHASE_UPDATE,
	PHASE_VALIDATION, /* includes its data */
	PHASE_SAVE,
	PHASES
};

/*
 * What the device does in every step: recorded once, in the second step, when all that is chosen
 * or allocated on the way has been, and replayed from then on.
 */
struct step_graph {
	bool used; /* a step is to be recorded */
	bool warm; /* a step was queued */
	struct backend_graph *recorded;
};

/* The state of a run, shared by train.c (its beginning and end) and train_steps.c and pipeline.c
 * (the loop). */
struct run {
	const struct config *config;
	struct comm *comm; /* all ranks */
	struct topology ranks;
	struct gpt2 model;
	struct backend *backend;
	struct backend_memory memory; /* of what passes read and leave */
	struct zero zero;
	struct network_weights weights;
	/* One for each micro-batch whose activations are kept at a time: a single one without a
	 * pipeline. */
	struct network **networks;
	unsigned nnetworks;
	struct tokens *tokens;
	struct loss_scaler scaler;
	struct metrics *metrics; /* rank 0 only */
	double spent[PHASES];    /* seconds, since the last report */
	/* Every rank makes `passes` passes through the network per batch, each over `pass_rows`
	 * rows: a micro-batch, or a single row if results must not depend on the number of
	 * ranks. */
	unsigned passes, pass_rows;
	struct feed *feed;
	struct step_graph graph;
	const int32_t *ints; /* of this batch's passes, on the device */
	/* What differs between passes: on the device, and where it is copied from. */
	struct network_pass *now, *now_set;
	/* Each pass's loss, summed over predictions: on the device, and the copy that a sync
	 * completes. */
	double *losses, *losses_read;
	uint64_t step; /* steps done, including skipped ones */
	uint64_t skipped;
	uint64_t vocab_rows;   /* from the checkpoint; 0 if unknown */
	uint64_t resumed;      /* the step resumed from; 0 for a new run */
	struct save_lock lock; /* rank 0 only */
	bool saves;            /* there is a writable checkpoint directory */
	struct saver *saver;
	uint64_t reported; /* the last checkpoint whose end was reported */
};

/* Losses of this rank, summed over passes. */
struct losses {
	double sum;
	int unread;        /* error of the first row that could not be read, or 0 */
	struct errmsg why; /* its message */
};

/* A phase of the step begins; returns when.  Phases may be nested. */
double train_phase_begin(struct run *r, enum phase p);
void train_phase_end(struct run *r, enum phase p, double begun);

/* Queue one pass over micro-batch `pass` of the batch in r->ints, forward and backward, or
 * forward only: to validate, or in a stage of a pipeline (network.h). */
void train_pass(struct run *r, struct network *n, bool valid, unsigned pass);

/* Go backward with what train_pass went forward with. */
void train_pass_back(struct run *r, struct network *n, unsigned pass);

/* The networks that a stage needs for `passes` micro-batches. */
unsigned pipeline_depth(const struct comm *pipe, unsigned passes);

/* Run all passes of a batch through all stages.  Every rank of the pipeline makes the same call;
 * only the last stage has losses. */
void pipeline_accumulate(struct run *r);

/* One pass of a validation. */
void pipeline_validate(struct run *r, unsigned pass);

/* Run all remaining steps, or until a signal.  Returns as train_run of train.c does. */
int train_steps(struct run *r, struct errmsg *err);

/* Decide whether steps are recorded, by --cuda_graph and by what the run is.  The training state
 * is open.  All ranks get the same result. */
int step_graph_open(struct run *r, struct errmsg *err);
void step_graph_close(struct run *r);

/* Queue what `queue` queues, which is the same in every step.  Collective when it is recorded. */
int step_graph_queue(struct run *r, void (*queue)(struct run *r), struct errmsg *err);

/*
 * The feed: tokens of this rank's passes on their way to the device, through memory that the
 * device copies from.  For a run whose backend, networks and tokens are open, from its next step
 * on. -ENOMEM; feed_free takes what there is then, too.
 */
int feed_new(struct feed **out, const struct run *r, struct errmsg *err);
void feed_free(struct feed *f);

/*
 * Queue the copy of a batch.  Returns what network_train takes for the first pass, on the device;
 * those of the others follow, network_ints apart.  They stay until the next call, which comes
 * after a sync.  Steps are asked for in order, validation batches (`valid`) in any.  If a row
 * could not be read, *unread is the error and *why its message, and the tokens of its pass are 0.
 */
const int32_t *feed_batch(struct feed *f, bool valid, uint64_t batch, int *unread,
			  struct errmsg *why);

/* Read the rows of the step after the one that is queued, which a device computes meanwhile. */
void feed_ahead(struct feed *f, uint64_t step);

#endif
