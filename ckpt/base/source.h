/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SOURCE_H
#define UCKPT_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "ckpt/base/bytes.h"

struct errmsg;

/* The identity of a shard as it was planned.  A file that differs later was
 * replaced, truncated or written to. */
struct fileid {
	uint64_t dev;
	uint64_t ino;
	uint64_t size;
	int64_t mtime_ns;
	int64_t ctime_ns; /* also changes when the mtime is set back */
	uint64_t attrs;   /* hash of mode, owners and number of links */
};

/* Nanoseconds since 1970; times beyond 64 bits wrap around. */
int64_t fileid_time_ns(const struct timespec *t);

void fileid_from_stat(const struct stat *st, struct fileid *id);

/* Do the inode, the size and the mtime agree? The device is ignored, since it changes when a file
 * system is remounted; so is the ctime, which also changes with the mode and the links. */
bool fileid_equal(const struct fileid *a, const struct fileid *b);

/* As fileid_equal; also, is the ctime unchanged, or explained by a change of attributes? False for
 * a file that was written to and whose mtime was set back.  For files that were never opened;
 * shards.h does more for others. */
bool fileid_unchanged(const struct fileid *was, const struct fileid *now);

/* Report how the file at `path` has changed.  Returns -EIO. */
int fileid_report_change(const char *path, const struct fileid *was,
			 const struct fileid *now, struct errmsg *err);

struct source;

/* A source implemented elsewhere. */
struct source_ops {
	/* As source_read; the range is known to be within the source. */
	int (*read)(const struct source *s, void *buf, size_t len, uint64_t off,
		    struct errmsg *err);
	/* As source_read_exact; NULL: `read` does the same. */
	int (*read_exact)(const struct source *s, void *buf, size_t len,
			  uint64_t off, struct errmsg *err);
	void (*close)(struct source *s);
};

/*
 * Bytes to parse: a file, memory (tests, fuzzers, files that we rendered), or an
 * implementation in `ops`.  Immutable once opened; reads are thread-safe.
 */
struct source {
	const char *name; /* for messages; borrowed */
	uint64_t size;
	int fd;           /* -1: no file */
	const uint8_t *p; /* NULL: no memory */
	struct fileid id; /* zero: no file */
	const struct source_ops *ops; /* NULL: a file, or memory */
	void *ctx;		      /* for `ops` */
};

/* Open a regular file; links are followed.  `path` must outlive the source. */
int source_open(struct source *s, const char *path, struct errmsg *err);

/* As source_open, for an open file.  The source takes ownership of the descriptor; on an error it
 * is closed. */
int source_open_fd(struct source *s, int fd, const char *path,
		   struct errmsg *err);

/* As source_open, for a file of known identity.  -EIO, with the difference, if it has changed. */
int source_open_known(struct source *s, const char *path,
		      const struct fileid *id, struct errmsg *err);

/* Check that an open file is the known one.  If it has changed, close it and return -EIO. */
int source_check_known(struct source *s, const struct fileid *id,
		       struct errmsg *err);

/* Check that all bytes read so far belong to the file that was opened.  -EIO if it has changed;
 * sources with `ops` check that themselves. */
int source_check_still(const struct source *s, struct errmsg *err);

void source_init_span(struct source *s, const char *name, struct span bytes);
void source_close(struct source *s);

/* Does the source have bytes [off, off + len)?  -EBADMSG if it ends before. */
int source_check(const struct source *s, size_t len, uint64_t off,
		 struct errmsg *err);

/* Read exactly `len` bytes at `off`; -EBADMSG if the source ends before. */
int source_read(const struct source *s, void *buf, size_t len, uint64_t off,
		struct errmsg *err);

/* As source_read, for bytes whose neighbours the caller will not read next: a source that fetches
 * in larger units fetches only these. */
int source_read_exact(const struct source *s, void *buf, size_t len,
		      uint64_t off, struct errmsg *err);

/* Read a whole file of at most `limit` bytes as a text, which the caller frees.  It ends
 * with a NUL that `*len` does not count.  -E2BIG. */
int source_text(const char *path, size_t limit, char **text, size_t *len,
		struct errmsg *err);

#endif
