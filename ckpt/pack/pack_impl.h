/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACK_IMPL_H
#define UCKPT_PACK_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/pack/blockcache.h"
#include "ckpt/pack/pack.h"

/* Where a block of a stored extent is, and what it decodes to. */
struct pack_block {
	uint64_t at; /* in the pack; it ends where the next one begins */
	uint64_t hash;
};

/* A stored extent's table, once a reader has needed it. */
struct pack_table {
	/* One more than there are blocks.  NULL until it has been read; does not
	 * change then. */
	struct pack_block *_Atomic blocks;
	uint64_t first; /* number of its first block among those of all extents */
	_Atomic uint64_t next;  /* block after the last one that was read */
	_Atomic uint64_t ahead; /* block up to which threads decode ahead */
};

/* What pack.c (opening), pack_read.c (bytes) and pack_ahead.c (threads) share. */
struct pack {
	struct source src;
	char *path; /* of pack_open; else NULL */
	struct pack_index x;
	struct pack_table *tables; /* of each extent; those of stored ones used */
	uint64_t serial;           /* unique in the process */
	pthread_mutex_t lock;      /* held while a table is read */
	unsigned users;            /* protected by pack.c's lock */
	struct pack *next;         /* the same */
};

/* Is each read of the pack a request to a server? */
static inline bool pack_is_requested(const struct pack *p)
{
	return p->src.fd < 0 && !p->src.p;
}

/* The table of a stored extent. */
int pack_load_table(struct pack *p, uint32_t extent,
		    const struct pack_block **out, struct errmsg *err);

/* Bring a block into the cache. */
int pack_get_block(struct pack *p, uint32_t extent, uint64_t block,
		   struct cached_block **out, struct errmsg *err);

/* Blocks [first, end) of a stored extent have been asked for: if they follow the
 * last ones, have the next ones decoded. */
void pack_ahead(struct pack *p, uint32_t extent, uint64_t first, uint64_t end);

#endif
