/* SPDX-License-Identifier: Apache-2.0 */
/* A step is so large that most indices of servers' packs are one request. */
#include "ckpt/pack/pack_stream.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/pack/pack_hash.h"

#define STEP ((size_t)4 << 20)

int pack_stream_open(struct pack_stream *s, const struct source *src,
		     uint64_t at, uint64_t len, struct errmsg *err)
{
	const size_t step = len < STEP ? (size_t)len : STEP;

	*s = (struct pack_stream){
		.src = src,
		.at = at,
		.end = at + len,
		.buf = malloc(step + PACK_STREAM_RECORD_MAX),
		.hash = XXH3_createState(),
	};
	if (!s->buf || !s->hash)
		return errmsg_nomem(err, src->name);
	XXH3_64bits_reset(s->hash);
	return 0;
}

static int read_step(struct pack_stream *s, struct errmsg *err)
{
	const uint64_t left = s->end - s->at;
	const size_t n = left < STEP ? (size_t)left : STEP;
	int rc;

	memmove(s->buf, s->buf + s->first, s->have);
	s->first = 0;
	rc = source_read(s->src, s->buf + s->have, n, s->at, err);
	if (rc)
		return rc;
	XXH3_64bits_update(s->hash, s->buf + s->have, n);
	s->have += n;
	s->at += n;
	return 0;
}

int pack_stream_next(struct pack_stream *s, size_t n, const uint8_t **out,
		     struct errmsg *err)
{
	assert(n <= PACK_STREAM_RECORD_MAX && n <= s->have + (s->end - s->at));
	if (s->have < n) {
		const int rc = read_step(s, err);

		if (rc)
			return rc;
	}
	*out = s->buf + s->first;
	s->first += n;
	s->have -= n;
	return 0;
}

uint64_t pack_stream_hash(const struct pack_stream *s)
{
	assert(!s->have && s->at == s->end);
	return XXH3_64bits_digest(s->hash);
}

void pack_stream_close(struct pack_stream *s)
{
	free(s->buf);
	XXH3_freeState(s->hash);
}
