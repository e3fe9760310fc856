/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HF_H
#define UCKPT_HF_H

#include "ckpt/table/checkpoint.h"

/* The weights of a Hugging Face directory, and the states of a run that has not made a step
 * yet.  Errors are those of hfdir_open. */
extern const struct checkpoint_ops hf_checkpoint_ops;

#endif
