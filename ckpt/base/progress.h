/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PROGRESS_H
#define UCKPT_PROGRESS_H

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>

#include "ckpt/base/context.h"

/* How much of long work is done. */
struct progress {
	const struct uckpt *u; /* has the progress callback */
	uint64_t total;        /* bytes; 0: not known */
	_Atomic uint64_t done;
};

/* Count `bytes` more, or with 0 look only whether the caller wants the work to stop:
 * -EINTR.  Thread-safe. */
static inline int progress_add(struct progress *p, uint64_t bytes)
{
	const struct uckpt_calls *c = &p->u->calls;
	const uint64_t done = atomic_fetch_add(&p->done, bytes) + bytes;

	return c->progress && c->progress(c->arg, done, p->total) ? -EINTR : 0;
}

/* Report steps of one kind, such as "reading shards", of which `done` are made; `total` 0:
 * not known. */
static inline void progress_step(const struct uckpt *u, const char *what, uint64_t done,
				 uint64_t total)
{
	if (u->calls.step)
		u->calls.step(u->calls.arg, what, done, total);
}

#endif
