/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACK_IMPL_H
#define UCKPT_PACK_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/cache/cache.h"
#include "ckpt/pack/pack.h"

/* A stored extent's table (pack_table_read).  NULL until a reader has needed it, and
 * immutable then. */
typedef struct pack_block *_Atomic pack_table;

/* Shared by pack.c (opening) and pack_read.c (bytes). */
struct pack {
	struct source src;
	char *path; /* of pack_open; else NULL */
	struct pack_index x;
	pack_table *tables;   /* of each extent; those of stored ones used */
	struct cache *cache;  /* decoded bytes of stored extents */
	pthread_mutex_t lock; /* held while a table is read */
	struct uckpt *u;
	/* Of pack_open, protected by the context's lock: */
	unsigned users;
	struct pack *next;
};

/* Is each read of the pack a request to a server? */
static inline bool pack_is_requested(const struct pack *p)
{
	return p->src.fd < 0 && !p->src.p;
}

/* As cache_fill: decode bytes of a stored extent. */
int pack_fill(void *p, uint32_t extent, void *buf, size_t len, uint64_t off,
	      struct errmsg *err);

#endif
