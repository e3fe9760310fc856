/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/order.h"

void order_expect(struct order *o, uint64_t ino, unsigned way)
{
	for (size_t i = 0; i < ORDER_EXPECTED; i++)
		if (o->expected[i].ino == ino && o->expected[i].way == way)
			return;
	o->expected[o->next].ino = ino;
	o->expected[o->next].way = way;
	o->next = (o->next + 1) % ORDER_EXPECTED;
}

bool order_meet(struct order *o, uint64_t ino, unsigned *way)
{
	bool met = false;

	for (size_t i = 0; i < ORDER_EXPECTED; i++)
		if (o->expected[i].ino == ino) {
			/* Where ways meet, the first is the likelier. */
			if (!met || o->expected[i].way < *way)
				*way = o->expected[i].way;
			met = true;
			o->expected[i].ino = 0;
		}
	if (met) {
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
