/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as the index of a sound checkpoint: the tree is planned, listed
 * and read from end to end.  (test_indexfile covers the file around them.)
 *
 *   byte 0    bit 0: ZeRO-3, bit 1: two ranks
 *   then      the index behind the identities of the files, which differ from
 *             run to run; nothing: the index that a mount would have written
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"
#include "tests/make/mkckpt.h"
#include "tests/support/walk.h"

enum { FLAG_ZERO3 = 1, FLAG_TWO_RANKS = 2, FLAGS = 4 };

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
		    plan_check(p, &err) ||
		    plan_index(p, &s->index, &err) != 1)
			abort();
		s->identity = identity_len(&plan_zckpt(p)->dir, &s->index);
		plan_close(p);
	}
	atexit(remove_dirs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct errmsg err = { "" }, refused = { "" };
	const struct sound *s;
	struct bytebuf index = { 0 };
	struct plan *p = NULL;
	int rc;

	if (!sounds[0].dir)
		set_up();
	if (size == 0)
		return 0;
	s = &sounds[data[0] % FLAGS];
	bytebuf_add(&index, s->index.data,
		    size == 1 ? s->index.len : s->identity);
	bytebuf_add(&index, data + 1, size - 1);
	rc = plan_open_indexed(s->dir, &options,
			       (struct span){ index.data, index.len }, &p,
			       &refused, &err);
	assert(rc == 0); /* the files are sound, whatever the index says */
	assert(size > 1 || !*refused.text);
	assert(!strstr(refused.text, "has changed")); /* identity_len is right */
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
