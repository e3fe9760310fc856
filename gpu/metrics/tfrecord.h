/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TFRECORD_H
#define UCTRAIN_TFRECORD_H

#include <isa-l/crc.h>
#include <stddef.h>
#include <stdint.h>

/*
 * TensorFlow's framing of records:
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

#endif
