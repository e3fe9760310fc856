/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACK_INDEX_H
#define UCKPT_PACK_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytes.h"
#include "ckpt/pack/block.h"

struct errmsg;
struct source;

/* The layout of a pack, which ucpack(5) documents. */
#define PACK_SUFFIX ".ucpack"
#define PACK_MAGIC "\x89UCPACK\n"
#define PACK_VERSION 2u
#define PACK_HEADER_SIZE sizeof(struct pack_header)
#define PACK_TABLE_RECORD 12u /* bytes for a block in its extent's table */

/* Limits for an index.  An extent is a storage, or a run of it; a ZeRO-3 model-states file has
 * no more than a million. */
#define PACK_ENTRIES_MAX (UINT64_C(1) << 20)
#define PACK_EXTENTS_MAX (UINT64_C(1) << 22)
#define PACK_NAME_MAX 4096u
#define PACK_NAMES_MAX (UINT64_C(1) << 26) /* bytes of all names */

/* Limit of the bytes of all files together. */
#define PACK_BYTES_MAX (UINT64_C(1) << 50)

/* Limit of the bytes of copies and rounded copies, as a multiple of the stored bytes: weights
 * follow from masters once for each file that holds them. */
#define PACK_REFERENCES_MAX 16u

/* The source of an extent's bytes. */
enum pack_kind {
	PACK_STORED = 0,  /* its own blocks */
	PACK_COPY = 1,    /* bytes of a stored extent */
	PACK_ROUNDED = 2, /* floats of a stored extent, rounded to a type of 16
			   * bits */
};

/* A record of the same layout in the file, where numbers have this machine's byte order
 * (block.c). */
struct pack_extent {
	uint64_t len; /* at least 1 */
	union {
		uint8_t file[48];
		struct {
			uint64_t start; /* in its file */
			uint32_t kind;  /* enum pack_kind */
			/* PACK_STORED: enum block_type of its blocks;
			 * PACK_ROUNDED: of the result; else BLOCK_BYTES. */
			uint32_t type;
			union {
				uint64_t at; /* of the first block, in the pack */
				uint64_t target; /* number of a stored extent */
			};
			union {
				uint64_t stored; /* bytes of all blocks, which
						  * follow each other */
				uint64_t from; /* first byte of the source in
						* the target */
			};
			/* PACK_STORED; else 0: */
			uint64_t table; /* of its table, in the pack */
			uint64_t table_hash;
		};
	};
};

/* A file or a directory; the first entry is the directory itself, named "". */
struct pack_entry {
	const char *name; /* relative; in the index; first: array_by_text */
	union {
		uint8_t file[64];
		struct {
			uint64_t name_at; /* among the names; see pack_index_put */
			uint32_t name_len;
			uint32_t mode;
			int64_t mtime_s;
			uint32_t mtime_ns;
			uint32_t n; /* extents */
			uint64_t size;
			uint64_t first;   /* number of its first extent */
			uint64_t hash[2]; /* XXH3-128 of the content: low, high;
					   * 0 of directories */
		};
	};
};

/* A block of a stored extent, which ends where the next one begins. */
struct pack_block {
	uint64_t at; /* offset in the pack */
	uint64_t hash;
};

/* The contents of a pack, sorted by name; extents are in the order of their files. */
struct pack_index {
	struct pack_entry *entries;
	struct pack_extent *extents;
	uint32_t nentries;
	uint32_t nextents;
	char *names;
};

/* The first bytes of a pack. */
struct pack_header {
	char magic[8];
	uint32_t version, block_size;
	uint64_t file_size;
	uint64_t index_at, index_size;
	uint64_t index_hash;
	uint64_t hash; /* hash of the preceding bytes */
};

/* Set the other fields of a header: magic, version, size of blocks, and hash. */
void pack_header_seal(struct pack_header *h);

/*
 * Read the header and the index of a pack and check all of it: that names are sorted,
 * lead nowhere else and have their directories; that extents make up each file; that
 * stored ones and their tables fill the pack without gaps; that references lie within
 * one stored extent.  -EBADMSG for anything that is no pack or a damaged one, -ENOTSUP
 * for another version, -E2BIG, -ENOMEM, or as source_read.
 */
int pack_index_read(const struct source *src, struct pack_index *out,
		    struct errmsg *err);
void pack_index_done(struct pack_index *x);

/* Append the bytes of an index, with the places and lengths of names. */
void pack_index_put(const struct pack_index *x, struct bytebuf *out);

/*
 * Read the table of a stored extent, with one record more than there are blocks. -EBADMSG if it is
 * damaged; -ENOMEM, or as source_read.  Memory is allocated only for records that exist, whatever
 * the index claims.
 */
int pack_table_read(const struct source *src, const struct pack_index *x,
		    uint32_t extent, struct pack_block **out, struct errmsg *err);

/* Write a path as the name of an entry would be (PACK_NAME_MAX bytes): without empty
 * components and ".".  False if it is too long or has a "..". */
bool pack_index_name(const char *path, char *name);

/* Return the number of the entry with that name; -1: none. */
int64_t pack_index_find(const struct pack_index *x, const char *name);

/* Return the number of the extent that holds byte `off` of a file; `off` must be below its size. */
uint32_t pack_index_extent(const struct pack_index *x,
			   const struct pack_entry *e, uint64_t off);

/* Return the number of the entry that an extent belongs to. */
uint32_t pack_index_owner(const struct pack_index *x, uint32_t extent);

/* Return the number of blocks of a stored extent. */
uint64_t pack_extent_blocks(const struct pack_extent *x);

/* Bytes of block `block` of `len` bytes that are cut into blocks. */
static inline size_t pack_block_len(uint64_t len, uint64_t block)
{
	const uint64_t left = len - block * BLOCK_SIZE;

	return left < BLOCK_SIZE ? (size_t)left : BLOCK_SIZE;
}

#endif
