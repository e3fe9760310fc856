/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/backing/predictor.h"

#include <assert.h>

void predictor_expect(struct predictor *o, uint64_t ino, unsigned order)
{
	assert(ino != 0 && o->next < PREDICTOR_EXPECTED);
	for (size_t i = 0; i < PREDICTOR_EXPECTED; i++)
		if (o->expected[i].ino == ino && o->expected[i].order == order) {
			o->expected[i].raised = o->opens;
			return;
		}
	o->expected[o->next].ino = ino;
	o->expected[o->next].order = order;
	o->expected[o->next].raised = o->opens;
	o->next = (o->next + 1) % PREDICTOR_EXPECTED;
}

/* A loader may match several orders at once: one that reads all files of all
 * parameters does.  Prefer the latest expectation, then the last order. */
static bool is_likelier(const struct predictor *o, size_t i, size_t than)
{
	if (o->expected[i].raised != o->expected[than].raised)
		return o->expected[i].raised > o->expected[than].raised;
	if (o->expected[than].order == o->last_order)
		return false;
	return o->expected[i].order == o->last_order ||
	       o->expected[i].order < o->expected[than].order;
}

/* The loader of that open did not take the other orders. */
static void predictor_forget(struct predictor *o, uint64_t raised)
{
	for (size_t i = 0; i < PREDICTOR_EXPECTED; i++)
		if (o->expected[i].raised == raised)
			o->expected[i].ino = 0;
}

bool predictor_observe(struct predictor *o, uint64_t ino, unsigned *order)
{
	size_t best = PREDICTOR_EXPECTED;

	o->opens++;
	for (size_t i = 0; i < PREDICTOR_EXPECTED; i++)
		if (o->expected[i].ino == ino) {
			if (best == PREDICTOR_EXPECTED ||
			    is_likelier(o, i, best))
				best = i;
			o->expected[i].ino = 0;
		}
	if (best == PREDICTOR_EXPECTED)
		return false;
	*order = o->last_order = o->expected[best].order;
	predictor_forget(o, o->expected[best].raised);
	return true;
}
