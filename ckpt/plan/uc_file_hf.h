/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_UC_FILE_HF_H
#define UCKPT_UC_FILE_HF_H

#include "ckpt/plan/uc_file.h"

struct errmsg;
struct hfdir_tensor;

/* The universal files of one tensor of a Hugging Face directory. */
enum uc_file_hf_slot {
	UC_FILE_HF_FP32,
	UC_FILE_HF_EXP_AVG,
	UC_FILE_HF_EXP_AVG_SQ,
	UC_FILE_HF_STEP, /* only in a tree for any stage */
	UC_FILE_HF_SLOTS
};

/* The stem of the file in a slot. */
const char *uc_file_hf_name(enum uc_file_hf_slot slot);

/* Lay out a file of tensor `t`; the extents' shard is the number of the
 * tensor's file.  -ENOMEM, -E2BIG. */
int uc_file_hf_of_tensor(const struct hfdir_tensor *t, enum uc_file_hf_slot slot,
			 struct uc_file *out, struct errmsg *err);

/* Lay out zero/optimizer_state.pt and a model-states file called `stem`, which
 * engines require. */
int uc_file_hf_of_optimizer(struct uc_file *out, struct errmsg *err);
int uc_file_hf_of_model(const char *stem, struct uc_file *out,
			struct errmsg *err);

#endif
