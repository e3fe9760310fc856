/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_IDLE_H
#define UCKPT_IDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * What threads use one at a time and what is expensive to make: connections, coders.
 * They wait here for their next user; the first ones are used most.  Thread-safe without a
 * lock; valid when zero-initialised.
 */
#define IDLE_MAX 256

struct idle {
	_Atomic(void *) v[IDLE_MAX];
};

/* Take one, or NULL if there is none. */
static inline void *idle_take(struct idle *x)
{
	for (size_t i = 0; i < IDLE_MAX; i++) {
		void *p = atomic_load(&x->v[i]) ? atomic_exchange(&x->v[i], NULL)
						: NULL;

		if (p)
			return p;
	}
	return NULL;
}

/* Put one back.  False if there is no room: then the caller frees it. */
static inline bool idle_put(struct idle *x, void *p)
{
	for (size_t i = 0; i < IDLE_MAX; i++) {
		void *none = NULL;

		if (atomic_compare_exchange_strong(&x->v[i], &none, p))
			return true;
	}
	return false;
}

#endif
