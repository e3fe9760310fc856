/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_LEGACY_H
#define UCKPT_LEGACY_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/format/pickle.h"

#include "ckpt/format/tensor.h"

struct bytebuf;
struct errmsg;
struct source;
struct value;

/* Limits; see zip.h for the reason of the first. */
#define LEGACY_STORAGES_MAX (1u << 23)
#define LEGACY_HEADER_MAX 4096		     /* bytes of each header pickle */
#define LEGACY_PICKLES_MAX PICKLE_BYTES_MAX /* bytes of all pickles */

/* The first byte of such a file: the opcode PROTO. */
#define LEGACY_FIRST_BYTE 0x80

struct legacy_storage {
	const char *key;
	uint64_t off; /* of element 0 in the file */
	uint64_t len; /* bytes */
	size_t elem;  /* bytes of an element; 0: not known yet */
};

/* The storages of a file that torch.save wrote without a zip container. */
struct legacy {
	struct arena arena;
	struct legacy_storage *v; /* sorted by key */
	size_t n;
};

/*
 * Read the file's pickles and the lengths of its storages, and check them against
 * each other and the file.  The storages are not read.  The object goes to `a`,
 * which must be empty and outlive `l`; its persistent ids have five fields, as in
 * a zip file.  -EBADMSG for another format and for damaged or hostile files,
 * -ENOTSUP for big-endian files and unknown types of storages, -E2BIG over a
 * limit, -EIO, -ENOMEM.  On failure nothing needs to be closed.
 */
int legacy_open(struct legacy *l, const struct source *src, struct arena *a,
		struct value **root, struct errmsg *err);
void legacy_close(struct legacy *l);

/* Return the storage with `key`, or NULL. */
struct legacy_storage *legacy_find(const struct legacy *l, const char *key);

/*
 * Append such a file with a contiguous tensor, up to the elements, which come last. torch.load
 * reads the file byte by byte, so optional parts are omitted.
 */
void legacy_add_tensor(struct bytebuf *out, enum dtype dtype, const uint64_t *shape,
		       unsigned ndim);

/* Append such a file with an object.  -ENOTSUP if it contains a tensor; otherwise as
 * pickle_dump. */
int legacy_add_object(struct bytebuf *out, const struct value *v, struct errmsg *err);

#endif
