/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A PyTorch distributed checkpoint of arbitrary bytes: read, planned, and all views of it
 * walked.
 *
 *   byte 0    bit 0: common.pt is there, as in Megatron-LM's
 *   then      .metadata, __0_0.distcp, with SEPARATOR between them
 */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/views/view.h"
#include "tests/fuzz/parts.h"
#include "tests/make/literal.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/walk.h"

enum { FLAG_MEGATRON = 1 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *dir;
static struct bytebuf common;

static void remove_dir(void)
{
	mkckpt_free_dir(dir);
	bytebuf_done(&common);
}

static void set_up(void)
{
	struct mkpt m = { 0 };

	dir = mkckpt_new_dir();
	mkpt_emit(&m,
		  literal_value(&m,
				"{'iteration': 3, 'optimizer': {'param_groups':"
				" [{'lr': 0.1}], 'state': {'common_step': 3}}}"),
		  "common", &common);
	mkpt_done(&m);
	atexit(remove_dir);
}

static void save(const char *name, struct span bytes)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (bytes.p)
		mkpt_save(path, bytes.p, bytes.len);
	else
		unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct view_options options = { .crc_zero = true };
	struct span rest;

	if (!dir)
		set_up();
	if (size == 0)
		return 0;
	rest = (struct span){ data + 1, size - 1 };
	save(".metadata", next_part(&rest));
	save("__0_0.distcp", rest);
	save("common.pt", data[0] & FLAG_MEGATRON
				  ? (struct span){ common.data, common.len }
				  : (struct span){ NULL, 0 });
	walk_directory(dir, &options);
	return 0;
}
