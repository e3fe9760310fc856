/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SURVEY_H
#define UCKPT_SURVEY_H

#include "ckpt/dirs/tags.h"

struct errmsg;
struct lines;
struct plan;
struct value;

/*
 * What is wrong with a checkpoint's files, all of it, for `ucckpt info` and
 * `ucckpt check`.  Lines that are there already are not added again.
 */

/* "global_step4" chosen from a run, in words; "" for TAGS_ITSELF. */
const char *survey_choice_text(enum tags_choice choice);

/* What may have been meant by `run` instead of the tag that was chosen. */
void survey_choice(const char *run, enum tags_choice choice,
		   struct lines *warnings);

/*
 * For a directory that cannot be planned because files are missing or
 * damaged: add a line for each file that the ranks should have written and
 * that is not there, and for each that cannot be read.
 */
void survey_missing(const char *dir, struct lines *problems);

/* Read every shard's map, and every file of an expert, each for itself. */
void survey_shards(struct plan *plan, struct lines *problems);
void survey_experts(struct plan *plan, struct lines *problems);

/* Read every model-states file: are all of one DeepSpeed version and step, and
 * do they say the same of experts?  survey_facts asks that of one, whose object
 * is `root`. */
void survey_models(struct plan *plan, struct lines *problems);
int survey_facts(struct plan *plan, const char *path, const struct value *root,
		 struct errmsg *err);

/* What does not keep the checkpoint from being served. */
void survey_warnings(struct plan *plan, struct lines *warnings);

#endif
