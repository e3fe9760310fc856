/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/backing/predictor.h"

void order_expect(struct order *o, uint64_t ino, unsigned way)
{
	for (size_t i = 0; i < ORDER_EXPECTED; i++)
		if (o->expected[i].ino == ino && o->expected[i].way == way) {
			o->expected[i].raised = o->opens;
			return;
		}
	o->expected[o->next].ino = ino;
	o->expected[o->next].way = way;
	o->expected[o->next].raised = o->opens;
	o->next = (o->next + 1) % ORDER_EXPECTED;
}

/* Who goes through all files of all parameters in any order meets each of them
 * on several ways.  The one that the open before this one pointed to is his; if
 * it pointed here on two, the one he was on. */
static bool is_likelier(const struct order *o, size_t i, size_t than)
{
	if (o->expected[i].raised != o->expected[than].raised)
		return o->expected[i].raised > o->expected[than].raised;
	if (o->expected[than].way == o->habit)
		return false;
	return o->expected[i].way == o->habit ||
	       o->expected[i].way < o->expected[than].way;
}

/* Whoever that open was by has gone on, this way and no other. */
static void forget(struct order *o, uint64_t raised)
{
	for (size_t i = 0; i < ORDER_EXPECTED; i++)
		if (o->expected[i].raised == raised)
			o->expected[i].ino = 0;
}

bool order_meet(struct order *o, uint64_t ino, unsigned *way)
{
	size_t best = 0;
	bool met = false;

	o->opens++;
	for (size_t i = 0; i < ORDER_EXPECTED; i++)
		if (o->expected[i].ino == ino) {
			if (!met || is_likelier(o, i, best))
				best = i;
			met = true;
			o->expected[i].ino = 0;
		}
	if (met) {
		*way = o->expected[best].way;
		forget(o, o->expected[best].raised);
		o->has_habit = true;
		o->habit = *way;
	}
	return met;
}

bool order_guess(struct order *o, unsigned *way)
{
	const bool guessed = o->has_habit;

	*way = o->habit;
	o->has_habit = false;
	return guessed;
}
