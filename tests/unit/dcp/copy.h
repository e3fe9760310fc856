/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_DCP_COPY_H
#define TESTS_UNIT_DCP_COPY_H

#include <stdio.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

/* The files that ZeRO would have: model states, and an optimizer's shard unless it is refused. */
#define COPY_FILES 2

/* A copy of a real checkpoint, whose metadata can be changed. */
struct copy {
	char *dir;
	struct span bytes; /* the real metadata, read once */
	struct arena a;
	struct value *metadata; /* attributes of the metadata, as a test changes them */
	struct value *root;
	struct bytebuf files[COPY_FILES]; /* laid-out files of the unchanged checkpoint */
};

/* For cmocka_run_group_tests: each test's state is the copy. */
int copy_setup(void **state);
int copy_teardown(void **state);

char *copy_path(const char *dir, const char *name);

/* Replace a link to a file of the real checkpoint by a copy, and return it open. */
FILE *copy_own_file(const struct copy *c, const char *name);

/* Write the bytes as the metadata. */
void copy_write(const struct copy *c, const void *p, size_t len);

/* Restore the real metadata, or write the values that a test has changed. */
void copy_reset(struct copy *c);
void copy_commit(struct copy *c);

/* Return the attributes of an entry's first chunk in storage_data. */
struct value *copy_info(const struct copy *c, const char *key);

/* Open the checkpoint. Returns 0, or the error with its message. */
int copy_open(const struct copy *c, struct checkpoint **out, struct errmsg *err);

/* Read everything that the views show. */
int copy_read(const struct copy *c, struct bytebuf *files, struct errmsg *err);

#endif
