/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HFCONTENT_H
#define UCKPT_HFCONTENT_H

#include "ckpt/plan/uc_file.h"

struct errmsg;
struct hfdir_tensor;

/* The universal files of a Hugging Face directory's tensor, by slot. */
enum hfcontent_slot {
	HFCONTENT_FP32,
	HFCONTENT_EXP_AVG,
	HFCONTENT_EXP_AVG_SQ,
	HFCONTENT_STEP, /* in a tree for engines as they are, only */
	HFCONTENT_SLOTS
};

/* The stem of the file in a slot. */
const char *hfcontent_name(enum hfcontent_slot slot);

/* What it says; its extents refer to the tensor's file by its number. */
int hfcontent_of_tensor(const struct hfdir_tensor *t, enum hfcontent_slot slot,
			struct content *out, struct errmsg *err);

/* zero/optimizer_state.pt and a model-states file, named `stem`, for engines
 * that do not begin without. */
int hfcontent_of_optimizer(struct content *out, struct errmsg *err);
int hfcontent_of_model(const char *stem, struct content *out,
		       struct errmsg *err);

#endif
