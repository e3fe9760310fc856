/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_EXPERTS_IMPL_H
#define UCKPT_EXPERTS_IMPL_H

#include "ckpt/model/experts.h"

struct value_seq;

/* experts_autoep.c: fill in the layers that ds_autoep_layers has entries
 * for. */
int experts_read_autoep(struct experts *x, struct arena *a,
			const struct value_seq *entries, bool zero3,
			const char *file, struct errmsg *err);

#endif
