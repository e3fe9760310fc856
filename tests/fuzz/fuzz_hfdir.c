/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory of Hugging Face weights of arbitrary bytes: planned, and all views walked.
 *
 *   byte 0    bit 0: there is an index, bit 1: files of torch.save
 *   then      with an index: it, and two files; else one file; SEPARATOR between them
 */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/views/view.h"
#include "tests/fuzz/parts.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/walk.h"

enum { FLAG_INDEX = 1, FLAG_TORCH = 2, FLAGS = 4 };

static const struct {
	const char *names[4]; /* in the order of the input */
} forms[FLAGS] = {
	{ { "model.safetensors" } },
	{ { "model.safetensors.index.json", "model-00001-of-00002.safetensors",
	    "model-00002-of-00002.safetensors" } },
	{ { "pytorch_model.bin" } },
	{ { "pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin",
	    "pytorch_model-00002-of-00002.bin" } },
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *dirs[FLAGS];

static void remove_dirs(void)
{
	for (size_t i = 0; i < FLAGS; i++)
		mkckpt_free_dir(dirs[i]);
}

static void set_up(void)
{
	for (size_t i = 0; i < FLAGS; i++)
		dirs[i] = mkckpt_new_dir();
	atexit(remove_dirs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct view_options options = { .crc_zero = true };
	char path[PATH_MAX];
	struct span rest;
	unsigned flags;

	if (!dirs[0])
		set_up();
	if (size == 0)
		return 0;
	flags = data[0] % FLAGS;
	rest = (struct span){ data + 1, size - 1 };
	for (size_t i = 0; forms[flags].names[i]; i++) {
		const struct span part = next_part(&rest);

		snprintf(path, sizeof(path), "%s/%s", dirs[flags],
			 forms[flags].names[i]);
		mkpt_save(path, part.p, part.len);
	}
	options.any_stage = data[0] & FLAGS;
	walk_directory(dirs[flags], &options);
	return 0;
}
