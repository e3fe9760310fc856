/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_BLOBS_H
#define UCKPT_DCP_BLOBS_H

#include <pthread.h>
#include <stdint.h>

#include "ckpt/base/permissions.h"
#include "ckpt/base/source.h"
#include "ckpt/dcp/metadata.h"

struct arena;
struct errmsg;
struct progress;
struct uckpt;
struct value;

/*
 * The files that have the data of a checkpoint, opened when they are first read.  Each is
 * read only while it is the one that it was at first.  Thread-safe after dcp_blobs_init.
 */
struct dcp_blobs {
	struct uckpt *u;
	const char *dir;      /* of the checkpoint, for messages; borrowed */
	pthread_mutex_t lock; /* protects what is open; not held across I/O */
	struct dcp_file *v;   /* by number */
	size_t n, nopen;
	bool found; /* all of them */
};

/* Find all files that the metadata names, and restrict `readable_by` to users that may read
 * them.  -EBADMSG if one is missing or ends before a blob does.  Call dcp_blobs_done in
 * the end. */
int dcp_blobs_init(struct dcp_blobs *b, struct uckpt *u, const char *dir,
		   const struct dcp_metadata *m, struct permissions *readable_by,
		   struct errmsg *err);
void dcp_blobs_done(struct dcp_blobs *b);

/* Are all files what they were at first? */
bool dcp_blobs_unchanged(const struct dcp_blobs *b);

/* Continue a hash with the identities of all files. */
uint64_t dcp_blobs_hash(const struct dcp_blobs *b, uint64_t hash);

/* Return the newest ctime of all files and `newest`. */
struct timespec dcp_blobs_ctime(const struct dcp_blobs *b, struct timespec newest);

/* Read an item as a value in `a`: a copy of the object, or the number that a tensor of one
 * element holds.  -EBADMSG if it has no data, -ENOTSUP if the tensor is no number. */
int dcp_blobs_value(struct dcp_blobs *b, struct dcp_item *t, struct arena *a,
		    struct value **out, struct errmsg *err);

/* Find where the elements of a chunk are, and what their checksum is.  -EBADMSG if its blob
 * does not hold what the metadata says. */
int dcp_blobs_locate(struct dcp_blobs *b, const struct dcp_item *t,
		     struct dcp_chunk *c, struct errmsg *err);

/*
 * Read all blobs of an item, and compare them with the checksums in them and with the
 * metadata.  `*summed`: all of them have checksums.  -EBADMSG for the first that is
 * damaged; -EINTR as progress_add.
 */
int dcp_blobs_check(struct dcp_blobs *b, const struct dcp_item *t,
		    struct progress *progress, bool *summed, struct errmsg *err);

/*
 * Read elements [first, first + n) of a tensor in row-major order, converted to `to`: its
 * own type, or float32 if cast_knows() its type.  -EBADMSG if a blob does not hold what
 * the metadata says; -EIO if a file has changed.
 */
int dcp_blobs_read(struct dcp_blobs *b, struct dcp_item *t, enum dtype to,
		   void *buf, uint64_t first, size_t n, struct errmsg *err);

#endif
