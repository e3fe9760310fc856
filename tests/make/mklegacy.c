/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/make/mklegacy.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"

const struct span legacy_good[PARTS] = {
	[PART_MAGIC] = BYTES(MAGIC),
	[PART_VERSION] = BYTES(PROTOCOL),
	[PART_SYS_INFO] = BYTES(SYS_INFO(TRUE)),
	[PART_OBJECT] = BYTES(OBJECT(FLOATS, HALVES)),
	[PART_KEYS] = BYTES(KEYS(KEY("11") KEY("22"))),
	[PART_DATA] = BYTES(DATA_11 DATA_22),
};

struct bytebuf legacy_make(const struct legacy_replaced *r, size_t n)
{
	struct bytebuf b = { 0 };

	for (unsigned i = 0; i < PARTS; i++) {
		struct span s = legacy_good[i];

		for (size_t k = 0; k < n; k++)
			if (r[k].by.p && r[k].part == i)
				s = r[k].by;
		bytebuf_add(&b, s.p, s.len);
	}
	return b;
}

int legacy_open_copy(const struct bytebuf *b, size_t len, struct ptfile *pt,
		     uint8_t **copy, struct errmsg *err)
{
	struct source src;

	*copy = malloc(len ? len : 1);
	memcpy(*copy, b->data, len);
	source_init_span(&src, "model.pt", (struct span){ *copy, len });
	return ptfile_open_source(pt, &src, err);
}
