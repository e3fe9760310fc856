/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/format/ziplayout.h"

#define FIXED_LEN 30 /* of a local header */
#define FB_LEN 4     /* the entry that pads, without its padding */

size_t ziplayout_zip64_len(uint64_t len, uint64_t header)
{
	if (len < UINT32_MAX && header < UINT32_MAX)
		return 0;
	return 4 + (len >= UINT32_MAX ? 16 : 0) + (header >= UINT32_MAX ? 8 : 0);
}

size_t ziplayout_local_len(size_t name_len, uint64_t len, uint64_t header)
{
	const size_t unpadded = FIXED_LEN + name_len +
				ziplayout_zip64_len(len, header) + FB_LEN;

	return unpadded + (size_t)(-(header + unpadded) % ZIPLAYOUT_ALIGNMENT);
}

size_t ziplayout_descriptor_len(uint64_t len, uint64_t header)
{
	return ziplayout_zip64_len(len, header) ? 24 : 16;
}
