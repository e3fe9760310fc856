/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STAGE0_LOOK_H
#define UCKPT_STAGE0_LOOK_H

#include <stdbool.h>

struct errmsg;
struct uckpt;
struct value;

#define STAGE0_FIRST "mp_rank_00_model_states.pt"

/*
 * What a directory of DIR_STAGE0 has by its first model states, STAGE0_NONE being any other.  No other
 * file is opened, as a run may have many of them.  Weights that model states have are served
 * without an optimizer: one that is not read, or whose files were deleted.  STAGE0_NONE, with
 * the message, if they cannot be read.
 */
enum stage0_kind { STAGE0_NONE, STAGE0_WEIGHTS, STAGE0_OPTIMIZER };
enum stage0_kind stage0_look(struct uckpt *u, const char *dir, struct errmsg *err);

/* Is an optimizer read from the object of model states?  -ENOTSUP if not, in a message that
 * begins with `file`. */
int stage0_check_optimizer(const struct value *root, const char *file, struct errmsg *err);

#endif
