/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CLIP_H
#define UCTRAIN_CLIP_H

#include <math.h>

#include "gpu/backend/splitmix.h"

/* As in torch and DeepSpeed: avoids a division by zero. */
#define CLIP_EPS 1e-6

/* Return the norm of gradients from `sum`, their sum of squares, after multiplication by `scale`.
 * The result is a float: the last digits of a sum over ranks depend on their number, and must not
 * affect the clipping or the metrics. */
SPLITMIX_FN float clip_norm(double sum, double scale)
{
	return (float)(sqrt(sum) * scale);
}

/* Return the factor that limits gradients of norm `norm` to `most` (0: no limit); 0 if the norm is
 * not finite. */
SPLITMIX_FN float clip_factor(float norm, double scale, double most)
{
	const double times = most > 0 ? ((double)norm + CLIP_EPS) / most : 0;

	if (!isfinite(norm))
		return 0;
	return (float)(times > 1 ? scale / times : scale);
}

#endif
