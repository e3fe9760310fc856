/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SAVE_IMPL_H
#define UCTRAIN_SAVE_IMPL_H

#include "gpu/backend.h"
#include "gpu/comm.h"
#include "gpu/config.h"
#include "gpu/gpt2.h"
#include "gpu/ptsave.h"
#include "gpu/save.h"
#include "gpu/scaler.h"
#include "gpu/zero.h"

/* Between the files of save. */

struct save {
	const struct zero *zero;
	const struct save_options *o;
	const char *dir; /* where files go */
};

/* Write this rank's model states, if it has any. */
int save_model(const struct save *s, struct errmsg *err);

/* Write this rank's shard of the optimizer (stages 1 to 3). */
int save_shard(const struct save *s, struct errmsg *err);

/* What stage 0 has under `optimizer` in the model states. */
struct value *save_whole_optimizer(const struct save *s, struct ptsave *pt);

#endif
