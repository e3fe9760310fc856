/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beginning of a torch.save file:
 *
 *     local header | PREFIX/data.pkl | extra | pickle | descriptor | ...
 *
 * The pickle's length is in the descriptor behind it, which is recognised by
 * containing the length and the CRC of the bytes before it.
 */
#include "gpu/read/pt_head.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/sys/crc32.h"

#define HEADER_LEN 30u
#define DESCRIPTOR_LEN 16u
#define PICKLE_NAME "/data.pkl"

static const uint8_t header_mark[] = { 'P', 'K', 3, 4 };
static const uint8_t descriptor_mark[] = { 'P', 'K', 7, 8 };

/* The offset of the pickle; 0 if the first record is not one. */
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

/* Is `p` + n followed by a descriptor of the n bytes at `p`? */
static bool describes(const uint8_t *at, const uint8_t *p, size_t n)
{
	return !memcmp(at, descriptor_mark, sizeof(descriptor_mark)) &&
	       get_le32(at + 8) == n && get_le32(at + 12) == n &&
	       get_le32(at + 4) == crc32_add(0, p, n);
}

/* The pickle in the file's first `len` bytes; empty if not found. */
static struct span find_pickle(const uint8_t *p, size_t len)
{
	const size_t start = find_start(p, len);

	for (size_t end = start; start && end + DESCRIPTOR_LEN <= len; end++)
		if (p[end] == 'P' && describes(p + end, p + start, end - start))
			return (struct span){ .p = p + start,
					      .len = end - start };
	return (struct span){ 0 };
}

int pt_head_read(struct pt_head *f, struct span bytes, const char *name,
		 struct errmsg *err)
{
	const struct span pickle = find_pickle(bytes.p, bytes.len);
	int rc;

	*f = (struct pt_head){ 0 };
	rc = pickle.len ? pickle_load(pickle, name, &f->arena, &f->root, err)
			: errmsg_set(err, -ENOTSUP,
				     "%s: unrecognised .pt header", name);
	if (rc)
		pt_head_done(f);
	return rc;
}

void pt_head_done(struct pt_head *f)
{
	arena_done(&f->arena);
	*f = (struct pt_head){ 0 };
}
