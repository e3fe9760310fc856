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

/* Phases of a step, for timing. */
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
 * Device operations that are the same in every step.  They are recorded in the second step, when
 * everything has been chosen and allocated, and replayed from then on.
 */
struct step_graph {
	bool used; /* steps are to be recorded */
	bool warm; /* a step has been queued */
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
	struct backend_memory memory; /* for inputs and results of passes */
	struct zero zero;
	struct network_weights weights;
	/* One per micro-batch whose activations are kept at the same time; without a pipeline there
	 * is one. */
	struct network **networks;
	unsigned nnetworks;
	struct tokens *tokens;
	struct loss_scaler scaler;
	struct metrics *metrics; /* rank 0 only */
	double spent[PHASES];    /* seconds per phase since the last report */
	/* Every rank makes `passes` passes through the network per batch, each over `pass_rows`
	 * rows: a micro-batch, or a single row if results must not depend on the number of
	 * ranks. */
	unsigned passes, pass_rows;
	struct feed *feed;
	struct step_graph graph;
	const int32_t *ints; /* of this batch's passes, on the device */
	/* Parameters that change between passes: on the device, and the host copy. */
	struct network_pass *now, *now_set;
	/* Each pass's loss, summed over predictions: on the device, and the host copy, complete
	 * after a sync. */
	double *losses, *losses_read;
	uint64_t step; /* steps done, including skipped ones */
	uint64_t skipped;
	uint64_t vocab_rows;   /* from the checkpoint; 0 if unknown */
	uint64_t resumed;      /* the step resumed from; 0 for a new run */
	struct save_lock lock; /* rank 0 only */
	bool saves;            /* there is a writable checkpoint directory */
	struct saver *saver;
	uint64_t reported; /* last checkpoint whose completion was reported */
};

/* Losses of this rank, summed over passes. */
struct losses {
	double sum;
	int unread;        /* error of the first row that could not be read, or 0 */
	struct errmsg why; /* its message */
};

/* Begin a phase of the step; returns the start time.  Phases may be nested. */
double train_phase_begin(struct run *r, enum phase p);
void train_phase_end(struct run *r, enum phase p, double begun);

/* Queue one pass over micro-batch `pass` of the batch in r->ints, forward and backward, or only
 * forward: for validation, or in a pipeline stage (network.h). */
void train_pass(struct run *r, struct network *n, bool valid, unsigned pass);

/* Run the backward pass for a preceding train_pass. */
void train_pass_back(struct run *r, struct network *n, unsigned pass);

/* The networks that a stage needs for `passes` micro-batches. */
unsigned pipeline_depth(const struct comm *pipe, unsigned passes);

/* Run all passes of a batch through all stages.  Every rank of the pipeline makes the same call;
 * only the last stage has losses. */
void pipeline_accumulate(struct run *r);

/* Run one validation pass. */
void pipeline_validate(struct run *r, unsigned pass);

/* Run all remaining steps, or until a signal.  Returns as train_run of train.c does. */
int train_steps(struct run *r, struct errmsg *err);

/* Decide whether to record steps, by --cuda_graph and the run's configuration.  Requires the
 * training state to be open.  All ranks get the same result. */
int step_graph_open(struct run *r, struct errmsg *err);
void step_graph_close(struct run *r);

/* Queue the operations of `queue`, which are the same in every step: by calling it, or by replaying
 * its recording.  Collective when it is recorded. */
int step_graph_queue(struct run *r, void (*queue)(struct run *r), struct errmsg *err);

/*
 * The feed copies tokens of this rank's passes to the device, through memory that the device can
 * copy from.  The run's backend, networks and tokens must be open; starts at its next step.
 * -ENOMEM; call feed_free even after an error.
 */
int feed_new(struct feed **out, const struct run *r, struct errmsg *err);
void feed_free(struct feed *f);

/*
 * Queue the copy of a batch.  Returns the device tokens for network_train's first pass; those of
 * the following passes are network_ints apart.  They are valid until the next call, which must come
 * after a sync.  Steps must be requested in order, validation batches (`valid`) in any order.  If a
 * row could not be read, *unread is the error, *why its message, and all tokens of its pass are 0.
 */
const int32_t *feed_batch(struct feed *f, bool valid, uint64_t batch, int *unread,
			  struct errmsg *why);

/* Read the rows of the step after the queued one, while a device computes. */
void feed_ahead(struct feed *f, uint64_t step);

#endif
