/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HF_H
#define UCKPT_HF_H

#include "ckpt/dirs/hfdir.h"
#include "ckpt/table/checkpoint.h"

/* The weights of a Hugging Face directory.  Errors are those of hfdir_open. */
struct hf_checkpoint {
	struct checkpoint c;
	struct hfdir d;
};

extern const struct checkpoint_ops hf_checkpoint_ops;

#endif
