/* SPDX-License-Identifier: Apache-2.0 */
/* Loss scaling exactly as DeepSpeed does it (runtime/fp16/loss_scaler.py), so that a run that
 * moves between the two keeps the same scales. */
#include "gpu/zero/loss_scaler.h"

#include <assert.h>
#include <errno.h>

#include "ckpt/base/errmsg.h"

#define FACTOR 2.0

void loss_scaler_init(struct loss_scaler *s, const struct loss_scaler_config *c)
{
	*s = (struct loss_scaler){ .scale = c->initial > 0 ? c->initial : 1 };
	if (!c->dynamic)
		return;
	s->dynamic = true;
	s->last_overflow = -1;
	s->window = (int64_t)c->window;
	s->hysteresis = s->patience = (int64_t)c->hysteresis;
	s->minimum = c->minimum;
}

static int shrink(struct loss_scaler *s, struct errmsg *err)
{
	if (s->scale == s->minimum)
		return errmsg_set(err, -ERANGE, "gradients overflow at the smallest loss scale, %g",
				  s->scale);
	s->scale /= FACTOR;
	if (s->scale < s->minimum)
		s->scale = s->minimum;
	return 0;
}

int loss_scaler_update(struct loss_scaler *s, bool overflow, struct errmsg *err)
{
	int rc = 0;

	if (!s->dynamic)
		return 0;
	assert(s->scale > 0);
	if (overflow) {
		if (s->hysteresis == 1 || s->patience == 1)
			rc = shrink(s, err);
		else
			s->patience--;
		s->last_overflow = s->iteration;
	} else {
		const int64_t good = s->iteration - s->last_overflow - 1;

		if (good > 0 && good % s->window == 0) {
			s->patience = s->hysteresis;
			s->scale *= FACTOR;
		}
	}
	s->iteration++;
	return rc;
}
