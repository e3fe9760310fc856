/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base/crc32.h"

#include <isa-l/crc.h>
#include <zlib.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"

uint32_t crc32_add(uint32_t crc, const void *bytes, size_t len)
{
	return crc32_gzip_refl(crc, bytes, len);
}

struct summing {
	crc32_read *read;
	void *ctx;
	struct crc_range *v; /* pieces of all ranges, in order */
};

static int sum_piece(void *ctx, size_t i, struct errmsg *err)
{
	const struct summing *s = ctx;
	struct crc_range *p = &s->v[i];
	uint8_t *buf = scratch_take(CRC32_CHUNK);
	int rc = buf ? 0 : errmsg_nomem(err, NULL);

	for (uint64_t done = 0; !rc && done < p->len;) {
		const uint64_t left = p->len - done;
		const size_t n = left < CRC32_CHUNK ? (size_t)left : CRC32_CHUNK;

		rc = s->read(s->ctx, buf, n, p->off + done, err);
		if (!rc)
			p->crc = crc32_add(p->crc, buf, n);
		done += n;
	}
	scratch_give(buf);
	return rc;
}

uint32_t crc32_zeros(uint64_t len)
{
	static const uint8_t zero;
	uint32_t sum = 0, power = crc32_add(0, &zero, 1);

	/* Square and multiply: double the number of zeros for each bit of the length. */
	for (uint64_t n = 1; n && n <= len; n <<= 1) {
		if (len & n)
			sum = (uint32_t)crc32_combine(sum, power, (z_off_t)n);
		power = (uint32_t)crc32_combine(power, power, (z_off_t)n);
	}
	return sum;
}

/* Split the ranges into pieces.  The first piece of each range continues the range's CRC. */
static void crc32_cut(const struct crc_range *v, size_t n,
		      struct crc_range *piece)
{
	for (size_t i = 0; i < n; i++)
		for (uint64_t at = 0; at < v[i].len; at += CRC32_PIECE) {
			const uint64_t left = v[i].len - at;

			*piece++ = (struct crc_range){
				.off = v[i].off + at,
				.len = left < CRC32_PIECE ? left : CRC32_PIECE,
				.crc = at ? 0 : v[i].crc,
			};
		}
}

static void combine(const struct crc_range *piece, struct crc_range *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		for (uint64_t at = 0; at < v[i].len; at += piece->len, piece++)
			v[i].crc = at ? (uint32_t)crc32_combine(
						v[i].crc, piece->crc,
						(z_off_t)piece->len)
				      : piece->crc;
}

int crc32_ranges(struct crc_range *v, size_t n, unsigned width,
		 crc32_read *read, void *ctx, struct errmsg *err)
{
	struct summing s = { .read = read, .ctx = ctx };
	size_t pieces = 0;
	int rc;

	for (size_t i = 0; i < n; i++)
		pieces += (size_t)((v[i].len + CRC32_PIECE - 1) / CRC32_PIECE);
	s.v = scratch_take(pieces * sizeof(*s.v));
	if (!s.v)
		return errmsg_nomem(err, NULL);
	crc32_cut(v, n, s.v);
	rc = parallel_for(pieces, width, sum_piece, &s, err);
	if (!rc)
		combine(s.v, v, n);
	scratch_give(s.v);
	return rc;
}
