/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of a file in a ucfs mount lie.
 *
 * A reader that needs more than FUSE's throughput asks an open file for its extents and reads the
 * shards itself.  Open the file with O_RDONLY | O_NONBLOCK, so that the server does not read a
 * small file ahead, then:
 *
 *     struct ucfs_extents x = { .version = UCFS_EXTENTS_VERSION };
 *     do {
 *             ioctl(fd, UCFS_IOC_EXTENTS, &x);
 *             ... x.extent[0 .. x.count - 1] ...
 *             x.start = x.next;
 *     } while (x.count);
 *
 * Extents come in order, without gaps.  The source of an extent is a number; UCFS_IOC_SOURCE
 * returns its file:
 *
 *     struct ucfs_source s = { .version = UCFS_EXTENTS_VERSION, .source = n };
 *     ioctl(fd, UCFS_IOC_SOURCE, &s);
 *
 * All files of a checkpoint in a mount, which their inode numbers have in common (UCFS_PLAN_SHIFT),
 * have the same numbers for the same sources: ask once.
 *
 * Check the identity against fstat() of the file that you open: if it differs, the shard was
 * replaced and must not be read.  Paths are absolute, as the server sees them.
 *
 * A reader that knows the format need not even read the beginning of a .pt file, which takes a
 * round trip and may trigger useless read-ahead: UCFS_IOC_LITERAL returns bytes that ucfs made.
 *
 * Errors: EINVAL for a version that the server does not know, ENOENT for a source or a literal that
 * does not exist, ENOTTY if the file is not in a ucfs mount or is not a file of a checkpoint.
 */
#ifndef UCFS_IOCTL_H
#define UCFS_IOCTL_H

#include <stdint.h>
#include <sys/ioctl.h>

#define UCFS_EXTENTS_VERSION 1u

/* Files of one mount whose st_ino >> UCFS_PLAN_SHIFT is the same belong to one view of a
 * checkpoint, which does not change.  A checkpoint that is saved again gets another number. */
#define UCFS_PLAN_SHIFT 40

enum ucfs_extent_kind {
	UCFS_EXTENT_LITERAL = 0, /* made by ucfs: read it from this file */
	UCFS_EXTENT_SOURCE = 1,  /* unchanged bytes of a source file */
	UCFS_EXTENT_CAST = 2,    /* converted from a source: read it from this file */
	UCFS_EXTENT_GATHER = 3,  /* from many sources: read it from this file */
	UCFS_EXTENT_ZERO = 4,    /* zeros: no need to read anything */
	UCFS_EXTENT_PACKED = 5,  /* compressed in a pack: read it from this file */
	UCFS_EXTENT_REMOTE =
		6, /* on a server, whose path is a URL: read it from this file */
};

struct ucfs_extent {
	uint64_t offset;	/* in this file */
	uint64_t length;	/* bytes */
	uint64_t source_offset; /* offset of the first byte in the source */
	uint32_t kind;		/* enum ucfs_extent_kind */
	uint32_t source;	/* for UCFS_IOC_SOURCE; else 0 */
};

/* An ioctl carries at most 16 KiB. */
#define UCFS_EXTENTS_MAX 500

struct ucfs_extents {
	uint32_t version; /* in: UCFS_EXTENTS_VERSION */
	uint32_t count;	  /* out: extents filled in; 0 at the end of the file */
	uint64_t start;	  /* in: offset of the first byte of interest */
	uint64_t next;	  /* out: `start` for the next call */
	uint64_t size;	  /* out: of the file */
	struct ucfs_extent extent[UCFS_EXTENTS_MAX];
};

#define UCFS_SOURCE_PATH_MAX 4096

struct ucfs_source {
	uint32_t version; /* in: UCFS_EXTENTS_VERSION */
	uint32_t source;  /* in */
	uint64_t dev;	  /* out: identity, as in struct stat */
	uint64_t ino;
	uint64_t size;
	int64_t mtime_ns;
	char path[UCFS_SOURCE_PATH_MAX]; /* out: absolute, NUL-terminated */
};

#define UCFS_LITERAL_MAX 8192

struct ucfs_literal {
	uint32_t version; /* in: UCFS_EXTENTS_VERSION */
	uint32_t count;	  /* out: bytes, up to the end of the extent */
	uint64_t offset;  /* in: offset of the first byte in this file */
	uint8_t bytes[UCFS_LITERAL_MAX];
};

#define UCFS_IOC_EXTENTS _IOWR('U', 0x75, struct ucfs_extents)
#define UCFS_IOC_SOURCE _IOWR('U', 0x76, struct ucfs_source)
#define UCFS_IOC_LITERAL _IOWR('U', 0x77, struct ucfs_literal)

#endif
