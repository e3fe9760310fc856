/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PICKLE_H
#define UCKPT_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytes.h"
#include "ckpt/format/value.h"

struct arena;
struct bytebuf;
struct errmsg;
struct source;

/*
 * Limits: they admit 4 million parameters, whose model states in one file have a
 * data.pkl of 630 MB, more with long names.  Real ones nest 12 deep.
 */
#define PICKLE_BYTES_MAX (1u << 30) /* size of data.pkl */
#define PICKLE_VALUES_FEW 65536     /* values of any pickle */
#define PICKLE_BYTES_PER_VALUE 2    /* limit beyond that; real pickles have 4 to 12 */
#define PICKLE_STACK_MAX (1u << 22) /* values on the stack */
#define PICKLE_MARKS_MAX 1024       /* open marks */
#define PICKLE_DEPTH_MAX 500        /* containers within containers */
#define PICKLE_MEMORY_PER_BYTE 128  /* arena bytes per input byte */
#define PICKLE_MEMORY_MAX (UINT64_C(8) << 30) /* arena bytes in total */

/*
 * Read a pickle into a graph of values in `a`.  Nothing is executed; anything that cannot be
 * represented as data is refused with its position.  Strings are copied: `bytes` may be freed
 * afterwards.  `name` is for messages.  -EBADMSG malformed or hostile, -ENOTSUP an unsupported
 * opcode, -E2BIG over a limit, -ENOMEM.
 */
int pickle_load(struct span bytes, const char *name, struct arena *a,
		struct value **root, struct errmsg *err);

/* The bytes of one pickle or of several that follow each other. */
struct pickle_bytes {
	const struct source *src; /* read as needed; NULL: all bytes are in memory */
	size_t first; /* bytes to read first; each further read doubles them */
	uint8_t *p;   /* owned by the caller */
	size_t len;   /* bytes in memory */
	size_t pos;   /* of the next byte */
	size_t end;   /* limit of the next pickle's end */
};

/*
 * One of the consecutive pickles in a file of torch's older container.  Its end is known only after
 * it has been read.  Its persistent ids have the six fields of that container (legacy.c) and may
 * stand for classes.
 */
struct pickle_part {
	/* Set by the caller, for messages: */
	const char *file;
	const char *part;
	bool is_whole; /* of a zip file: ids have five fields, all of storages */
	/* Results of pickle_load_part: */
	struct value *root;
	struct value storages; /* list of VALUE_STORAGE nodes in order of visit */
};

/* As pickle_load, for the pickle at in->pos; advances in->pos to its end.  Errors include -ENODATA:
 * the bytes end before the pickle. */
int pickle_load_part(struct pickle_bytes *in, struct arena *a, struct pickle_part *part,
		     struct errmsg *err);

/* The storages of a pickle in first-visit order, as torch numbers them. */
struct pickle_storages {
	const struct value **pid; /* VALUE_STORAGE nodes; owned */
	size_t n;
	size_t cap;
};

void pickle_storages_done(struct pickle_storages *s);

/*
 * Write `root` as torch.save would: protocol 2, CPython's choice of opcodes and
 * memo numbers, storages numbered from 0 in order of visit and located on the CPU.
 * `storages`, which must be empty, gets their nodes; if it is NULL, a tensor is -ENOTSUP.
 * -E2BIG when larger or nested deeper than any pickle that pickle_load
 * accepts, or over a limit of its own, -ENOTSUP, -ENOMEM.
 */
int pickle_dump(const struct value *root, struct bytebuf *out,
		struct pickle_storages *storages, struct errmsg *err);

/* Append an int, or a str of less than 4 GiB, as every protocol writes it. */
void pickle_add_int(struct bytebuf *out, int64_t i);
void pickle_add_text(struct bytebuf *out, const char *p, size_t len);

/* Copy `v` and its strings to another arena; NULL if it cannot be written or read, or when memory
 * runs out. */
struct value *pickle_copy(struct arena *a, const struct value *v);

#endif
