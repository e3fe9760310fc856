/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TBEVENTS_H
#define UCTRAIN_TBEVENTS_H

#include <isa-l/crc.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct source;

/*
 * TensorBoard event files: scalars by tag and step, in TensorFlow's framing of records:
 *
 *     u64  length
 *     u32  masked CRC-32C of the eight bytes of length
 *     ...  length bytes
 *     u32  masked CRC-32C of these
 */
#define TFRECORD_HEAD 12
#define TFRECORD_TAIL 4

/* TensorFlow masks CRCs because the CRC of data that contains a CRC is weak. */
static inline uint32_t tfrecord_crc(const void *p, size_t len)
{
	const uint32_t crc = ~crc32_iscsi((void *)p, (int)len, 0xffffffffu);

	return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* The wire types of Protocol Buffers. */
enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct tbevents {
	int fd;     /* -1: not open */
	char *path; /* owned */
};

/* Create a new file in directory `dir`.  It invalidates steps from `first_step` on in earlier files
 * there.  The caller must close it even after an error. */
int tbevents_create(struct tbevents *t, const char *dir, uint64_t first_step, struct errmsg *err);

struct tbevents_scalar {
	const char *tag;
	double value; /* stored as float32 */
};

/* Append the scalars of a step, and write them before returning. */
int tbevents_add(struct tbevents *t, uint64_t step, const struct tbevents_scalar *scalars, size_t n,
		 struct errmsg *err);
int tbevents_close(struct tbevents *t, struct errmsg *err);

/* Called for each scalar in file order, and with a NULL tag where the file invalidates `step` and
 * later steps.  A result other than 0 stops reading. */
typedef int (*tbevents_fn)(void *ctx, const char *tag, size_t tag_len, uint64_t step, double value);

/*
 * Read the complete records of a file.  Returns 0 even if the file ends within a record, as a
 * killed run leaves it; then `err` has a message, otherwise its text is empty.  -EBADMSG if the
 * file does not start as an event file, or if a record's checksum is wrong; earlier records have
 * been passed to `fn`.
 */
int tbevents_read(const struct source *src, tbevents_fn fn, void *ctx, struct errmsg *err);

#endif
