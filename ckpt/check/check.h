/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CHECK_H
#define UCKPT_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/cmd/report.h"

struct param;
struct progress;
struct slice;
struct uckpt;

int cmd_check(struct uckpt *u, int argc, char **argv);

/* A file written by a rank. */
struct check_file {
	char *path;
	bool is_zip;
	bool summed; /* its zip directory holds checksums */
	struct findings problems;
};

/* Two holders of elements that must be equal. */
struct check_pair {
	const struct param *param;
	const struct slice *a, *b;
	/* Compare the whole parameter as this holder has it (merge.holder) with
	 * that of the first; 0: compare the two slices. */
	size_t holder;
	bool stages; /* slices of two pipeline stages */
	struct findings differences, problems;
};

/* The state and findings of `ucckpt check`. */
struct check {
	struct report report;
	bool data;   /* read tensors as well */
	bool *whole; /* per model-parallel rank: all shards are readable */

	struct check_file *files;
	size_t nfiles;
	struct shardcache *shards; /* the same files, by the same numbers */
	struct check_pair *pairs;
	size_t npairs;
	size_t params;
	uint64_t bytes;  /* of all files */
	uint64_t opened; /* files of the universal tree that opened */
	struct progress *progress;

	struct findings forms; /* options of convert that would succeed */
};

/* The parts of a check.  Each adds its findings; none stops at a problem. */

void check_list_files(struct check *c);

/* Check each file by itself: its zip directory, the headers of its members, and
 * the facts in model-states files.  With `data`, compare every member with its
 * checksum. */
void check_files(struct check *c);

void check_files_done(struct check *c);

/* Open every file of the universal tree and count the files.  Leaves out parameters
 * whose shards are damaged. */
void check_tree(struct check *c);

/* If no problems were found: check every form that `ucckpt convert` writes, and
 * list in `forms` those that it can write for this checkpoint. */
void check_forms(struct check *c);

/* List the pairs to compare.  Returns the bytes that comparing them reads. */
uint64_t check_list_pairs(struct check *c);

void check_pairs(struct check *c);

#endif
