/* SPDX-License-Identifier: Apache-2.0 */
/* Copies are exact, whatever their lengths and alignments, and nothing outside
 * the destination is written. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/sys/copy_nt.h"
#include "tests/support/unit.h"

#define ROOM (300u << 10)
#define MARGIN 128

static void copies_are_exact(void **state)
{
	static const size_t lens[] = { 0, 1, 15, 63, 64, 65, 127, 128, 4095,
				       4096, 16383, 16384, 16385, 16384 + 64,
				       3 * 16384 + 4097, 262144, 262145 };
	static const size_t places[] = { 0, 1, 8, 16, 17, 63, 64 };
	uint8_t *const from = malloc(ROOM), *const to = malloc(ROOM);
	uint8_t *const want = malloc(ROOM);

	for (size_t i = 0; i < ROOM; i++)
		from[i] = (uint8_t)(i * 7 ^ i >> 8);
	for (size_t n = 0; n < COUNT(lens); n++)
		for (size_t s = 0; s < COUNT(places); s++)
			for (size_t d = 0; d < COUNT(places); d++) {
				const size_t at = MARGIN + places[d];

				memset(to, 0xee, ROOM);
				memset(want, 0xee, ROOM);
				memcpy(want + at, from + places[s], lens[n]);
				copy_nt(to + at, from + places[s], lens[n]);
				assert_memory_equal(to, want, ROOM);
			}
	free(from);
	free(to);
	free(want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_are_exact),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
