/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DIAGNOSE_H
#define UCKPT_DIAGNOSE_H

#include "ckpt/dirs/tags.h"

struct findings;
struct plan;

/*
 * Finds all problems of a checkpoint's files, for `ucckpt info` and `ucckpt
 * check`.  A line that is already in the findings is not added again.
 */

/* How the tag was chosen, in words; "" for TAGS_ITSELF. */
const char *diagnose_choice_text(enum tags_choice choice);

/* Warn if `run` may mean another tag than the one that was chosen. */
void diagnose_choice(const char *run, enum tags_choice choice,
		     struct findings *warnings);

/*
 * For a directory that cannot be planned because files are missing or damaged:
 * add a line for each missing file of a rank and each file that cannot be read.
 */
void diagnose_missing(const char *dir, struct findings *problems);

/* Read the map of every shard, and every expert file. */
void diagnose_shards(struct plan *plan, struct findings *problems);
void diagnose_experts(struct plan *plan, struct findings *problems);

/* Read every model-states file and check that all agree on DeepSpeed's version,
 * the step and the experts. */
void diagnose_models(struct plan *plan, struct findings *problems);

/* Add warnings about a checkpoint that can be served. */
void diagnose_warnings(struct plan *plan, struct findings *warnings);

#endif
