/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DIFF_SOURCE_H
#define UCKPT_DIFF_SOURCE_H

#include <stddef.h>

struct errmsg;
struct plan;
struct state;
struct weights;

/* Open the file of a state in a planned universal tree, or a weight in the type
 * that the views give it.  Close it with state_close before the plan. */
int diff_source_state(struct plan *p, const char *param, const char *name,
		      struct state *out, struct errmsg *err);
int diff_source_weight(struct plan *p, const struct weights *w, size_t weight,
		       struct state *out, struct errmsg *err);

#endif
