/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ZIP_H
#define UCKPT_ZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"

struct errmsg;
struct source;

/* Signatures of an archive's records, and their sizes without names and extra fields. */
#define ZIP_LOCAL_SIG 0x04034b50u
#define ZIP_DESCRIPTOR_SIG 0x08074b50u
#define ZIP_CENTRAL_SIG 0x02014b50u
#define ZIP_EOCD_SIG 0x06054b50u
#define ZIP_EOCD64_SIG 0x06064b50u
#define ZIP_LOCATOR64_SIG 0x07064b50u
#define ZIP_LOCAL_LEN 30
#define ZIP_CENTRAL_LEN 46
#define ZIP_EOCD_LEN 22
#define ZIP_EOCD64_LEN 56
#define ZIP_LOCATOR64_LEN 20
#define ZIP_ZIP64_EXTRA 1
#define ZIP_FLAG_DESCRIPTOR 0x0008
#define ZIP_FLAG_UTF8 0x0800

/*
 * Limits of a directory: they admit 4 million parameters, each with a member of its
 * own in a model-states file.
 */
#define ZIP_ENTRIES_MAX (1u << 23)
#define ZIP_DIRECTORY_MAX (1u << 30)

struct zip_entry {
	const char *name; /* without the archive's prefix; NUL-terminated */
	uint64_t header;  /* offset of the local header */
	uint64_t end;     /* where the next member or the directory begins */
	uint64_t size;
	uint32_t crc;
	uint16_t full_name_len;
	bool descriptor; /* a descriptor follows the bytes */
};

/* The central directory of a stored-only ZIP or ZIP64 archive. */
struct zip {
	const struct source *src; /* borrowed: must outlive the zip */
	struct arena arena;
	char *prefix; /* "<prefix>/" of every member, as torch writes them */
	struct zip_entry *entries; /* sorted by name */
	size_t n;
};

/*
 * Read and check the directory: bounds, overlaps, duplicate names,
 * compression (torch stores, never compresses).  Reads the tail of the
 * archive only.  On failure nothing needs to be closed.
 */
int zip_open(struct zip *z, const struct source *src, struct errmsg *err);
void zip_close(struct zip *z);

/*
 * Lengths of the parts that torch's writer puts around a record of `len` bytes whose local header
 * begins at `header`.  The data begins on a multiple of ZIP_ALIGNMENT; ptwrite.c has the form.
 */
#define ZIP_ALIGNMENT 64

/* Bytes of the ZIP64 extra field, in the local header and in the directory. */
size_t zip_zip64_len(uint64_t len, uint64_t header);

/* Bytes from the local header to the data. */
size_t zip_local_len(size_t name_len, uint64_t len, uint64_t header);

/* Bytes of the data descriptor, which follows data that is not empty. */
size_t zip_descriptor_len(uint64_t len, uint64_t header);

/* Return the member called `name` below the prefix, or NULL. */
const struct zip_entry *zip_find(const struct zip *z, const char *name);

/* Find the offset of the member's bytes.  Reads its local header and checks it against the
 * directory. */
int zip_locate(const struct zip *z, const struct zip_entry *e,
	       uint64_t *offset, struct errmsg *err);

/* As zip_locate, without reading, if the member is where torch would put it, which its padding and
 * the next member's offset confirm.  Headers are spread over the file, and a store may take
 * milliseconds for each. */
int zip_place(const struct zip *z, const struct zip_entry *e, uint64_t *offset,
	      struct errmsg *err);

/* Compare the checksum of the member's bytes, which begin at `off`, with the directory's. */
int zip_check_sum(const struct zip_entry *e, uint32_t crc, uint64_t off, const char *file,
		  struct errmsg *err);

#endif
