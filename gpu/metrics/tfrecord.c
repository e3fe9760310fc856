/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/metrics/tfrecord.h"

/* Castagnoli's polynomial, reflected; a record is a hundred bytes, so bit by
 * bit will do.  The mask is there because a CRC of data that contains its own
 * CRC is no good. */
uint32_t tfrecord_crc(const void *p, size_t len)
{
	const uint8_t *const bytes = p;
	uint32_t crc = 0xffffffffu;

	for (size_t i = 0; i < len; i++) {
		crc ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (-(crc & 1u) & 0x82f63b78u);
	}
	crc = ~crc;
	return (crc >> 15 | crc << 17) + 0xa282ead8u;
}
