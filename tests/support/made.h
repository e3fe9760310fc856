/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random virtual files, and for each of them the same bytes, assembled in
 * memory.
 */
#ifndef TESTS_MADE_H
#define TESTS_MADE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/io/shards.h"
#include "ckpt/vfile/vfile.h"

#define SHARDS 3
#define SHARD_LEN 300000
#define MADE_STORAGES 5

/* Files of random bytes. */
struct made_shards {
	char *dir;
	char path[SHARDS][PATH_MAX];
	uint8_t *bytes[SHARDS];
	struct shards *c;
};

void made_shards_make(struct made_shards *f);
void made_shards_done(struct made_shards *f);

/* A virtual file and its expected bytes. */
struct made {
	uint8_t *whole;
	uint64_t size;
	uint32_t sums[MADE_STORAGES];
	vfile_crc crc[MADE_STORAGES];
	size_t n;
	struct vfile *f;
};

/* Make `n` storages of several random runs each; the third is empty. */
void made_file(const struct made_shards *f, struct made *m, size_t n, bool sums, uint64_t seed);
/* Open the file of `of` a second time. */
void made_again(const struct made_shards *f, struct made *m, struct made *of, uint64_t seed);
void made_done(struct made *m);

bool made_read_is_right(struct made *m, uint8_t *buf, size_t len, uint64_t off);
bool made_map_is_right(struct made *m, size_t len, uint64_t off);
bool made_pieces_are_right(struct made *m, uint64_t seed, unsigned n);

/* Check that the checksum of each storage is known and right. */
void made_check_sums(const struct made *m);

/* Return where the trailer begins, whose bytes require the checksums. */
uint64_t made_trailer(const struct made *m);

#endif
