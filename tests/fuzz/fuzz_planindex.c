/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A damaged index of a sound checkpoint: the tree is planned, listed and read from
 * end to end.  (test_indexfile covers the file around it.)  The index is the one that
 * a mount would write now, so that inputs do not age with its form: they say what is
 * changed in it, behind the version and the identities of files.
 *
 *   byte 0    bit 0: ZeRO-3, bit 1: two ranks
 *   then      changes, applied in order; none: the index must be accepted
 *       operation (8 bits), place (16), byte (8)
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"
#include "tests/make/mkckpt.h"
#include "tests/support/walk.h"

enum { FLAG_ZERO3 = 1, FLAG_TWO_RANKS = 2, FLAGS = 4 };

enum { CHANGE_LEN = 4, CHANGES_MAX = 64 };

/* Those before INSERT: 1, 2, 4, 8 bytes become `byte`. */
enum change { INSERT = 4, REMOVE, CUT, CHANGES };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct mkckpt_param params[] = {
	{ "emb.weight", 2, { 5, 3 }, 0 },
	{ "bias", 1, { 5 }, 0 },
	{ "scalar", 0, { 0 }, 1 },
};

static const struct mkckpt_extra extras[] = {
	{ .name = "buffer", .dtype = DTYPE_I64, .ndim = 1, .shape = { 3 } },
};

static const struct plan_options options;

/* By flags. */
static struct sound {
	char *dir;
	struct bytebuf index; /* as a mount writes it */
	size_t identity;      /* bytes with which every index of it begins */
} sounds[FLAGS];

static void remove_dirs(void)
{
	for (size_t i = 0; i < FLAGS; i++) {
		mkckpt_free_dir(sounds[i].dir);
		bytebuf_done(&sounds[i].index);
	}
}

/* The length of the version and the identities, see index.c. */
static size_t identity_len(const struct tagdir *d, const struct bytebuf *index)
{
	return 4 + index->data[0] + 9 + 3 * 4 + 40 * tagdir_count(d);
}

static void set_up(void)
{
	for (unsigned flags = 0; flags < FLAGS; flags++) {
		struct sound *const s = &sounds[flags];
		const struct mkckpt c = {
			.stage = flags & FLAG_ZERO3 ? 3 : 2,
			.ranks = flags & FLAG_TWO_RANKS ? 2 : 1,
			.params = params,
			.nparams = COUNT(params),
			.ngroups = 2,
			.extras = extras,
			.nextras = flags & FLAG_ZERO3 ? 0 : COUNT(extras),
			.align = 1,
		};
		struct errmsg err;
		struct plan *p;

		s->dir = mkckpt_new_dir();
		mkckpt_write(&c, s->dir);
		if (plan_open(s->dir, &options, &p, &err) ||
		    plan_check(p, &err) || plan_index(p, &s->index, &err) != 1)
			abort();
		s->identity = identity_len(&plan_zckpt(p)->dir, &s->index);
		plan_close(p);
	}
	atexit(remove_dirs);
}

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* One change of what follows the first `start` bytes; there is room for a byte. */
static void change(struct bytebuf *b, size_t start, const uint8_t *c)
{
	const enum change op = c[0] % CHANGES;
	const size_t at = start + get_le16(c + 1) % (b->len - start + 1);
	const size_t behind = b->len - at;
	uint8_t *const p = b->data + at;
	size_t n;

	switch (op) {
	case INSERT:
		memmove(p + 1, p, behind);
		*p = c[3];
		b->len++;
		break;
	case REMOVE:
		n = least(c[3], behind);
		memmove(p, p + n, behind - n);
		b->len -= n;
		break;
	case CUT:
		b->len = at;
		break;
	default:
		memset(p, c[3], least((size_t)1 << op, behind));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct errmsg err = { "" }, refused = { "" };
	const struct sound *s;
	struct bytebuf index = { 0 };
	struct plan *p = NULL;
	size_t nchanges;
	int rc;

	if (!sounds[0].dir)
		set_up();
	if (size == 0)
		return 0;
	s = &sounds[data[0] % FLAGS];
	nchanges = least((size - 1) / CHANGE_LEN, CHANGES_MAX);
	bytebuf_reserve(&index, s->index.len + nchanges);
	bytebuf_add(&index, s->index.data, s->index.len);
	for (size_t i = 0; i < nchanges; i++)
		change(&index, s->identity, data + 1 + i * CHANGE_LEN);
	rc = plan_open_indexed(s->dir, &options,
			       (struct span){ index.data, index.len }, &p,
			       &refused, &err);
	assert(rc == 0); /* the files are sound, whatever the index says */
	assert(nchanges || !*refused.text);
	/* identity_len is right */
	assert(!strstr(refused.text, "has changed") &&
	       !strstr(refused.text, "another version"));
	rc = walk_plan(p, &err);
	plan_close(p);
	bytebuf_done(&index);
	if (rc == WALK_BROKEN)
		fprintf(stderr, "%s\n", err.text);
	assert(rc != WALK_BROKEN);
	/* A refused index is replaced by the files. */
	assert(rc == 0 || !*refused.text);
	return 0;
}
