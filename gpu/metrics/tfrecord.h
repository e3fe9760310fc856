/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TFRECORD_H
#define UCTRAIN_TFRECORD_H

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

uint32_t tfrecord_crc(const void *p, size_t len);

#endif
