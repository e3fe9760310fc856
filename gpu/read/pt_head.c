/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a file of torch.save begins:
 *
 *     local header | PREFIX/data.pkl | extra | pickle | descriptor | ...
 *
 * The length of the pickle is in the descriptor behind it, which is known by
 * saying the length and the checksum of what is before it.
 */
#include "gpu/read/pt_head.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/base/source.h"

#define FRONT_MAX ((uint64_t)16 << 20)
#define HEADER_LEN 30u
#define DESCRIPTOR_LEN 16u
#define PICKLE_NAME "/data.pkl"

static const uint8_t header_mark[] = { 'P', 'K', 3, 4 };
static const uint8_t descriptor_mark[] = { 'P', 'K', 7, 8 };

/* Where the pickle begins; 0 if the first record is none. */
static size_t find_start(const uint8_t *p, size_t len)
{
	const size_t mark = sizeof(PICKLE_NAME) - 1;
	size_t name, extra;

	if (len < HEADER_LEN || memcmp(p, header_mark, sizeof(header_mark)))
		return 0;
	name = get_le16(p + 26);
	extra = get_le16(p + 28);
	if (name < mark || HEADER_LEN + name + extra > len ||
	    memcmp(p + HEADER_LEN + name - mark, PICKLE_NAME, mark))
		return 0;
	return HEADER_LEN + name + extra;
}

/* Is this what follows `n` bytes at `p`? */
static bool describes(const uint8_t *at, const uint8_t *p, size_t n)
{
	return !memcmp(at, descriptor_mark, sizeof(descriptor_mark)) &&
	       get_le32(at + 8) == n && get_le32(at + 12) == n &&
	       get_le32(at + 4) == checksum_add(0, p, n);
}

/* The pickle in the file's first `len` bytes; empty if it is not found. */
static struct span find_pickle(const uint8_t *p, size_t len)
{
	const size_t start = find_start(p, len);

	for (size_t end = start; start && end + DESCRIPTOR_LEN <= len; end++)
		if (p[end] == 'P' && describes(p + end, p + start, end - start))
			return (struct span){ .p = p + start,
					      .len = end - start };
	return (struct span){ 0 };
}

int front_read(struct front *f, const struct source *src, uint64_t len,
	       struct errmsg *err)
{
	uint8_t *bytes = NULL;
	struct span pickle;
	int rc;

	*f = (struct front){ 0 };
	if (len > FRONT_MAX)
		return errmsg_set(err, -ENOTSUP, "%s: begins strangely",
				  src->name);
	bytes = malloc(len + 1);
	if (!bytes)
		return errmsg_set(err, -ENOMEM, "out of memory");
	rc = source_read(src, bytes, len, 0, err);
	if (!rc) {
		pickle = find_pickle(bytes, len);
		rc = pickle.len ? pickle_load(pickle, src->name, &f->arena,
					      &f->root, err)
				: errmsg_set(err, -ENOTSUP,
					     "%s: begins strangely", src->name);
	}
	free(bytes);
	if (rc)
		front_done(f);
	return rc;
}

void front_done(struct front *f)
{
	arena_done(&f->arena);
	*f = (struct front){ 0 };
}
