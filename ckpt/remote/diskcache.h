/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DISKCACHE_H
#define UCKPT_DISKCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

/*
 * Blocks of servers' files on a local disk, for all processes of one user that name
 * the same directory.  A block is a file of its own, named by the file's path and
 * generation, and is checked when it is read; what is damaged is not there.  The
 * directory holds about as many bytes as it may: the blocks used longest ago go
 * first.  Best effort: a full or failing disk makes reads slower.  Thread-safe.
 */
#define DISKCACHE_BLOCK ((size_t)1 << 20)

/* Use the directory, which is made if it is not there.  -EPERM unless it is the
 * user's own and nobody else may write to it; or what the system says.  Called once,
 * before threads are started. */
int diskcache_open(const char *dir, uint64_t limit, struct errmsg *err);

/* For tests: forget it. */
void diskcache_close(void);

bool diskcache_is_open(void);

/* A file's name there: a hash of its path, generation and size. */
#define DISKCACHE_KEY_LEN 33
void diskcache_key(const char *path, const char *generation, uint64_t size,
		   char key[DISKCACHE_KEY_LEN]);

/* Read block `number`, of `len` bytes (at most DISKCACHE_BLOCK).  False if it is not
 * there. */
bool diskcache_get(const char *key, uint64_t number, void *buf, size_t len);

bool diskcache_has(const char *key, uint64_t number);

/* Keep a block. */
void diskcache_put(const char *key, uint64_t number, const void *buf,
		   size_t len);

#endif
