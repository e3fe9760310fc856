/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/sys/crc32.h"

#include <isa-l/crc.h>
#include <zlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/sys/scratch.h"

/* Bytes of a piece: several pieces for each thread, because a thread may start
 * late; below the minimum one thread is faster than starting another. */
#define PIECES_EACH 4
#define PIECE_MIN (UINT64_C(2) << 20)
#define PIECE_MAX (UINT64_C(16) << 20)

uint32_t crc32_add(uint32_t crc, const void *bytes, size_t len)
{
	return crc32_gzip_refl(crc, bytes, len);
}

struct summing {
	crc32_read *read;
	void *ctx;
	struct crc_range *v; /* pieces, in the order of ranges */
	size_t n;
};

static int sum_piece(void *ctx, size_t i, struct errmsg *err)
{
	const struct summing *const s = ctx;
	struct crc_range *const p = &s->v[i];
	uint8_t *const buf = scratch_take(CRC32_CHUNK);
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

static uint64_t piece_len(const struct crc_range *v, size_t n, unsigned width)
{
	uint64_t total = 0, len;

	for (size_t i = 0; i < n; i++)
		total += v[i].len;
	len = total / (width > 1 ? width * PIECES_EACH : 1);
	len = (len / CRC32_CHUNK + 1) * CRC32_CHUNK;
	return len < PIECE_MIN ? PIECE_MIN : len > PIECE_MAX ? PIECE_MAX : len;
}

static size_t count_pieces(uint64_t len, uint64_t piece)
{
	return (size_t)((len + piece - 1) / piece);
}

/* Split the ranges into pieces; the first of each continues its range's CRC. */
static void crc32_cut(struct summing *s, const struct crc_range *v, size_t n,
		      uint64_t piece)
{
	for (size_t i = 0; i < n; i++)
		for (uint64_t at = 0; at < v[i].len; at += piece) {
			const uint64_t left = v[i].len - at;

			s->v[s->n++] = (struct crc_range){
				.off = v[i].off + at,
				.len = left < piece ? left : piece,
				.crc = at ? 0 : v[i].crc,
			};
		}
}

uint32_t crc32_zeros(uint64_t len)
{
	static const uint8_t zero;
	uint32_t sum = 0, power = crc32_add(0, &zero, 1);

	/* Square and multiply: double the zeros for each bit of the length. */
	for (uint64_t n = 1; n && n <= len; n <<= 1) {
		if (len & n)
			sum = (uint32_t)crc32_combine(sum, power, (z_off_t)n);
		power = (uint32_t)crc32_combine(power, power, (z_off_t)n);
	}
	return sum;
}

static void combine(const struct crc_range *piece, struct crc_range *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const uint64_t end = v[i].off + v[i].len;

		for (uint64_t at = v[i].off; at < end; piece++) {
			if (at == v[i].off)
				v[i].crc = piece->crc;
			else
				v[i].crc = (uint32_t)crc32_combine(
					v[i].crc, piece->crc,
					(z_off_t)piece->len);
			at += piece->len;
		}
	}
}

int crc32_ranges(struct crc_range *v, size_t n, unsigned width,
		 crc32_read *read, void *ctx, struct errmsg *err)
{
	const uint64_t piece = piece_len(v, n, width);
	struct summing s = { .read = read, .ctx = ctx };
	size_t pieces = 0;
	int rc;

	for (size_t i = 0; i < n; i++)
		pieces += count_pieces(v[i].len, piece);
	s.v = scratch_take(pieces * sizeof(*s.v));
	if (!s.v)
		return errmsg_nomem(err, NULL);
	crc32_cut(&s, v, n, piece);
	rc = parallel_for(s.n, width, sum_piece, &s, err);
	if (!rc)
		combine(s.v, v, n);
	scratch_give(s.v);
	return rc;
}
