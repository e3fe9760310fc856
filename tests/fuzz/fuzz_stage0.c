/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model states of a checkpoint without ZeRO, of an arbitrary pickle: planned, and all views
 * walked.  The zip container is sound and has each storage that the pickle names, as long as
 * it says, so that mutations reach what matches the optimizer with the model.
 *
 *   byte 0    bit 0: two model-parallel ranks, with the same states
 *   then      data.pkl
 */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytes.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"
#include "ckpt/views/view.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/walk.h"

#define STORAGES_MAX 256
#define STORAGE_MAX (1u << 16)

enum { FLAG_TWO_RANKS = 1, DIRS };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *dirs[DIRS + 1]; /* directories, by flags */

static void remove_dirs(void)
{
	for (size_t i = 0; i < sizeof(dirs) / sizeof(*dirs); i++)
		mkckpt_free_dir(dirs[i]);
}

static void set_up(void)
{
	for (size_t i = 0; i < sizeof(dirs) / sizeof(*dirs); i++)
		dirs[i] = mkckpt_new_dir();
	atexit(remove_dirs);
}

/* Add the storages that the pickle names by numbers, like torch's. */
static void add_storages(struct mkpt *m, struct span pickle)
{
	static uint8_t bytes[STORAGE_MAX];
	size_t len[STORAGES_MAX] = { 0 }, n = 0;
	struct pickle_storages met = { 0 };
	struct bytebuf copy = { 0 };
	struct arena a = { 0 };
	struct value *root;

	if (!pickle_load(pickle, "fuzz", &a, &root, NULL))
		pickle_dump(root, &copy, &met, NULL);
	for (size_t i = 0; i < met.n; i++) {
		const char *key;
		uint64_t numel;
		enum dtype type;
		char *end;
		size_t k;

		if (tensor_storage(met.pid[i], "fuzz", &type, &key, &numel, NULL))
			continue;
		k = strtoul(key, &end, 10);
		if (*end || end == key || k >= STORAGES_MAX ||
		    numel > STORAGE_MAX / dtype_size(type))
			continue;
		len[k] = (size_t)numel * dtype_size(type);
		n = n > k + 1 ? n : k + 1;
	}
	for (size_t k = 0; k < n; k++)
		mkpt_add_storage(m, bytes, len[k]);
	pickle_storages_done(&met);
	bytebuf_done(&copy);
	arena_done(&a);
}

static void save(const char *dir, unsigned rank, const struct bytebuf *file)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/mp_rank_%02u_model_states.pt", dir,
		 rank);
	mkpt_save(path, file->data, file->len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct view_options options = { .crc_zero = true };
	const struct span pickle = { data + 1, size - 1 };
	struct bytebuf file = { 0 };
	struct mkpt m = { 0 };
	const char *dir;

	if (!dirs[0])
		set_up();
	if (size == 0)
		return 0;
	dir = dirs[data[0] & FLAG_TWO_RANKS];
	add_storages(&m, pickle);
	mkpt_emit_pickle(&m, pickle, "archive", &file);
	save(dir, 0, &file);
	if (data[0] & FLAG_TWO_RANKS)
		save(dir, 1, &file);
	mkpt_done(&m);
	bytebuf_done(&file);
	walk_directory(dir, &options);
	return 0;
}
