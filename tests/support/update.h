/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UPDATE_H
#define TESTS_UPDATE_H

#include "gpu/zero/zero.h"

/* Run the whole update at once. */
static inline int update_all(struct zero *z, struct zero_update *u, struct errmsg *err)
{
	zero_begin_update(z, u);
	zero_queue_update(z, u->clip);
	return zero_end_update(z, u, err);
}

#endif
