/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random reads of a packed file against pread(2) of the original, in one process:
 *
 *   packread PACK NAME ORIGINAL [READS]
 *
 * prints, for each size of a read, the median microseconds of both and their ratio.
 * The cache of decoded blocks has little room, so that reads decode.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "ckpt/io/io.h"
#include "ckpt/pack/pack.h"
#include "ckpt/remote/cache.h"
#include "tests/support/context.h"

static const size_t sizes[] = { 4u << 10, 128u << 10, 1u << 20 };

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
	qsort(v, n, sizeof(*v), by_value);
	return v[n / 2];
}

int main(int argc, char **argv)
{
	const size_t reads = argc > 4 ? strtoul(argv[4], NULL, 10) : 2000;
	double *const a = calloc(reads, sizeof(*a)), *const b = calloc(
							     reads, sizeof(*b));
	uint8_t *const x = malloc(1u << 20), *const y = malloc(1u << 20);
	struct errmsg err = { "" };
	struct pack *p;
	int64_t entry;
	int fd;

	if (argc < 4 || !a || !b || !x || !y)
		return 2;
	cache_set_limit(test_context(), 0, 0, false);
	if (io_open_pack(test_context(), argv[1], &p, &err)) {
		fprintf(stderr, "packread: %s\n", err.text);
		return 1;
	}
	entry = pack_index_find(pack_index_of(p), argv[2]);
	fd = open(argv[3], O_RDONLY | O_CLOEXEC);
	if (entry < 0 || fd < 0)
		return 1;

	const uint64_t size = pack_index_of(p)->entries[entry].size;

	for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
		for (size_t i = 0; i < reads; i++) {
			const uint64_t off =
				(uint64_t)(drand48() *
					   (double)(size - sizes[s])) &
				~UINT64_C(4095);
			double t = clock_seconds() * 1e6;

			if (pack_read(p, (uint32_t)entry, x, sizes[s], off,
				      &err)) {
				fprintf(stderr, "packread: %s\n", err.text);
				return 1;
			}
			a[i] = clock_seconds() * 1e6 - t;
			t = clock_seconds() * 1e6;
			if (pread(fd, y, sizes[s], (off_t)off) !=
			    (ssize_t)sizes[s])
				return 1;
			b[i] = clock_seconds() * 1e6 - t;
			if (memcmp(x, y, sizes[s]) != 0)
				return 1;
		}

		const double packed = median(a, reads), plain = median(b, reads);

		printf("%zu KiB: %.1f us packed, %.1f us pread, %.1f times\n",
		       sizes[s] >> 10, packed, plain, packed / plain);
	}
	pack_close(p);
	close(fd);
	free(a);
	free(b);
	free(x);
	free(y);
	return 0;
}
