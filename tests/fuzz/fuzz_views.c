/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole checkpoint of arbitrary pickles: planned, and all views listed and read from end to
 * end.
 * The zip containers are sound (fuzz_zip and fuzz_ptfile mutate those), so that
 * mutations reach the planner.
 *
 *   byte 0    bit 0: ZeRO-3, bit 1: two ranks, bit 2: zero checksums,
 *             bit 3: experts
 *   then      data.pkl of the model states, of an expert if there are any, of
 *             optimizer shard 0, of shard 1, with SEPARATOR between them; a
 *             missing shard 1 equals shard 0, and all experts are alike
 *
 * Storages are the same in all files: numbered from 0, STORAGE_LEN bytes.
 */
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/views/view.h"
#include "tests/fuzz/parts.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/walk.h"

#define STORAGES 12
#define STORAGE_LEN 2048

#define EXPERTS 4

enum {
	FLAG_ZERO3 = 1,
	FLAG_TWO_RANKS = 2,
	FLAG_NO_SUMS = 4,
	FLAG_EXPERTS = 8
};
/* Flags that select the files. */
#define FLAGS_FILES (FLAG_ZERO3 | FLAG_TWO_RANKS | FLAG_EXPERTS)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct mkpt storages;
static char *dirs[FLAGS_FILES + 1]; /* directories, by flags */

static void remove_dirs(void)
{
	for (size_t i = 0; i < sizeof(dirs) / sizeof(*dirs); i++)
		if (dirs[i])
			mkckpt_free_dir(dirs[i]);
	mkpt_done(&storages);
}

static void set_up(void)
{
	uint8_t bytes[STORAGE_LEN];

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 31);
	for (size_t i = 0; i < STORAGES; i++)
		mkpt_add_storage(&storages, bytes, sizeof(bytes));
	for (size_t i = 0; i < sizeof(dirs) / sizeof(*dirs); i++)
		dirs[i] = mkckpt_new_dir();
	atexit(remove_dirs);
}

static void save_file(const char *path, struct span pickle)
{
	struct bytebuf b = { 0 };

	mkpt_emit_pickle(&storages, pickle, "archive", &b);
	mkpt_save(path, b.data, b.len);
	bytebuf_done(&b);
}

static void save(const struct mkckpt *c, const char *dir, enum mkckpt_file kind,
		 unsigned rank, struct span pickle)
{
	char path[PATH_MAX];

	mkckpt_path(c, dir, kind, rank, path);
	save_file(path, pickle);
}

static void save_experts(const char *dir, struct span pickle)
{
	char path[PATH_MAX];

	for (unsigned i = 0; i < EXPERTS; i++) {
		snprintf(path, sizeof(path),
			 "%s/layer_0_expert_%u_mp_rank_00_model_states.pt", dir,
			 i);
		save_file(path, pickle);
	}
}

static void save_all(const struct mkckpt *c, const char *dir, bool experts,
		     struct span rest)
{
	const struct span model = next_part(&rest);
	struct span shard;

	if (experts)
		save_experts(dir, next_part(&rest));
	shard = next_part(&rest);
	save(c, dir, MKCKPT_MODEL, 0, model);
	save(c, dir, MKCKPT_OPTIM, 0, shard);
	if (c->ranks == 1)
		return;
	save(c, dir, MKCKPT_OPTIM, 1, rest.len ? rest : shard);
	if (c->stage == 3)
		save(c, dir, MKCKPT_MODEL, 1, model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!dirs[0])
		set_up();
	if (size == 0)
		return 0;

	const struct mkckpt c = {
		.stage = data[0] & FLAG_ZERO3 ? 3 : 2,
		.ranks = data[0] & FLAG_TWO_RANKS ? 2 : 1,
	};
	const struct view_options options = {
		.crc_zero = data[0] & FLAG_NO_SUMS,
	};
	const char *const dir = dirs[data[0] & FLAGS_FILES];

	save_all(&c, dir, data[0] & FLAG_EXPERTS,
		 (struct span){ data + 1, size - 1 });
	walk_directory(dir, &options);
	return 0;
}
