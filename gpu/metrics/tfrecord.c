/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/metrics/tfrecord.h"

/* CRC-32C, Castagnoli's polynomial, reflected.  Records have about a hundred
 * bytes, so that one bit at a time is fast enough.  TensorFlow masks CRCs
 * because the CRC of data that contains a CRC is weak. */
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
