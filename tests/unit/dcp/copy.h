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
	struct span bytes; /* of the real metadata */
	struct arena a;
	struct value *metadata; /* its attributes, before a change */
	struct value *root;
	struct bytebuf files[COPY_FILES]; /* its files, unchanged */
};

/* For cmocka_run_group_tests: the copy is the state of each test. */
int copy_setup(void **state);
int copy_teardown(void **state);

char *copy_path(const char *dir, const char *name);

/* Replace a link to a file of the real checkpoint by a copy, which is open. */
FILE *copy_own_file(const struct copy *c, const char *name);

/* Write bytes as the metadata. */
void copy_write(const struct copy *c, const void *p, size_t len);

/* Read the real metadata; write the values, which a test has changed since. */
void copy_reset(struct copy *c);
void copy_commit(struct copy *c);

/* The attributes of the first chunk of an entry in storage_data. */
struct value *copy_info(const struct copy *c, const char *key);

/* Open the checkpoint: 0, or a refusal with its message. */
int copy_open(const struct copy *c, struct checkpoint **out, struct errmsg *err);

/* Read all that views show of it. */
int copy_read(const struct copy *c, struct bytebuf *files, struct errmsg *err);

#endif
