/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_UCKPT_H
#define UCKPT_UCKPT_H

#include <pthread.h>

/*
 * What one user of the library has set and opened: everything that reads checkpoints is
 * passed this context, and two of them in one process know nothing of each other.  Each
 * member belongs to the room that declares its type; uckpt_new (files/files.h) makes one.
 */
struct uckpt {
	/* Set before threads are started: */
	struct confined *confined; /* roots that no link leaves (beneath.h) */
	struct united *unions;     /* of directories (files/roots.h) */

	pthread_mutex_t lock; /* not held across I/O; protects the lists below */
	struct pack *packs;   /* that are open (pack/pack.h) */
};

#endif
