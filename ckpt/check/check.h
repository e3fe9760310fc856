/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CHECK_H
#define UCKPT_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/cmd/findings.h"
#include "ckpt/dirs/tags.h"

struct param;
struct plan;
struct progress;
struct shard_group;
struct slice;

int cmd_check(int argc, char **argv);

/* A file written by a rank. */
struct check_file {
	char *path;
	uint64_t size;
	bool is_zip;
	bool summed; /* its zip directory holds checksums */
	struct findings problems;
};

/* Two slices whose elements must be equal because tensor or pipeline
 * parallelism replicates the parameter. */
struct check_pair {
	const struct slice *a, *b;
	bool stages; /* slices of two pipeline stages */
	struct findings differences, problems;
};

/* Further holders of a parameter's pieces, whose elements must be equal. */
struct check_copy {
	const struct param *param;
	size_t holder; /* as merge.holder */
	struct findings problems;
};

/* The state and findings of `ucckpt check`. */
struct check {
	char *dir; /* the tag's directory */
	enum tags_choice choice;
	bool data; /* read tensors as well */

	struct plan *plan; /* NULL if it cannot be served */
	bool *whole;	   /* per model-parallel rank: all shards are
			    * readable */

	struct check_file *files;
	size_t nfiles;
	struct shardcache *shards; /* the same files, by the same numbers; NULL
				    * if they cannot all be read */
	struct check_pair *pairs;
	size_t npairs;
	struct check_copy *copies;
	size_t ncopies;
	size_t params;
	uint64_t bytes;	 /* of all files */
	uint64_t opened; /* files of the universal tree that opened */
	struct progress *progress;

	struct findings forms; /* options of convert that would succeed */
	struct findings notes, warnings, problems;
};

/* The parts of a check.  Each adds its findings; none stops at a problem. */

void check_list_files(struct check *c);

/* Check each file by itself: its zip directory, the headers of its members, and
 * the facts in model-states files.  With `data`, compare every member with its
 * checksum. */
void check_files(struct check *c);

void check_files_done(struct check *c);

/* Check all ranks together: their states, their fragments, and each file of the
 * universal tree. */
void check_ranks(struct check *c);

/*
 * Open every file of a plan's tree, add the problems and count the files.
 * Leaves out parameters whose shards are damaged.  Returns the first error.
 */
int check_tree(const struct check *c, struct plan *p, uint64_t *opened,
	       struct findings *problems);

/* If no problems were found: check every form that `ucckpt convert` writes, and
 * list in `forms` those that it can write for this checkpoint. */
void check_forms(struct check *c);

/* Check that each layer of a pipeline has its file. */
void check_layers(struct check *c);

/* Bytes per element of the master weight and all states together. */
uint64_t check_element_bytes(const struct shard_group *g);

/* List the pairs and the copies to compare.  Returns the bytes that comparing
 * them reads. */
uint64_t check_list_pairs(struct check *c);
uint64_t check_list_copies(struct check *c);

/* Compare them. */
void check_pairs(struct check *c);
void check_copies(struct check *c);

#endif
