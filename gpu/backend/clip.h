/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CLIP_H
#define UCTRAIN_CLIP_H

#include <math.h>

#include "gpu/backend/splitmix.h"

/* As in torch and DeepSpeed: avoids division by a norm of zero. */
#define CLIP_EPS 1e-6

/* The norm of gradients whose squares' sum is `sum`, after they are multiplied by `scale`; a
 * float, since the sum over ranks depends on their number in its last digits, which must reach
 * neither the clipping nor the metrics. */
SPLITMIX_FN float clip_norm(double sum, double scale)
{
	return (float)(sqrt(sum) * scale);
}

/* What gradients of a norm are multiplied with so that it is at most `most`, where 0 is no limit;
 * 0 if the norm is not finite. */
SPLITMIX_FN float clip_factor(float norm, double scale, double most)
{
	const double times = most > 0 ? ((double)norm + CLIP_EPS) / most : 0;

	if (!isfinite(norm))
		return 0;
	return (float)(times > 1 ? scale / times : scale);
}

#endif
