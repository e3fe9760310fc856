/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CMD_CHECK_H
#define UCKPT_CMD_CHECK_H

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

/* A file that a rank wrote. */
struct check_file {
	char *path;
	uint64_t size;
	bool is_zip;
	bool summed; /* its zip directory holds checksums */
	struct lines problems;
};

/* Two slices that must hold the same, by tensor or pipeline parallelism. */
struct check_pair {
	const struct slice *a, *b;
	bool stages; /* of two pipeline stages */
	struct lines problems;
};

/* A parameter's pieces on the ranks that have them, too. */
struct check_copy {
	const struct param *param;
	size_t holder; /* as in struct merge */
	struct lines problems;
};

/* What `ucckpt check` has found out. */
struct check {
	char *dir; /* the tag's directory */
	enum tags_choice choice;
	bool data; /* read tensors too */

	struct plan *plan; /* NULL: it cannot be served */
	bool *whole;	   /* of each model-parallel rank: all shards read */

	struct check_file *files;
	size_t nfiles;
	struct check_pair *pairs;
	size_t npairs;
	struct check_copy *copies;
	size_t ncopies;
	uint64_t bytes;	 /* of files */
	uint64_t opened; /* files of the universal tree */
	struct progress *progress;

	struct lines notes, warnings, problems;
};

/*
 * The parts of a check.  Each adds to the notes and problems; none stops at a
 * problem.
 */

void check_list_files(struct check *c);

/* The files by themselves: their directories, members' headers, and what the
 * plan cannot know of model-states files; with tensors, every member against
 * its checksum. */
void check_files(struct check *c);

void check_files_done(struct check *c);

/* All ranks together: their states, their fragments, and each file of the
 * universal tree. */
void check_ranks(struct check *c);

/* Is there a file for each layer of a pipeline? */
void check_layers(struct check *c);

/* An element's bytes, of the master weight and all states together. */
uint64_t check_element_bytes(const struct shard_group *g);

/* List the pairs, and the copies; returns how many bytes comparing them reads. */
uint64_t check_list_pairs(struct check *c);
uint64_t check_list_copies(struct check *c);

/* With tensors: are they the same? */
void check_pairs(struct check *c);
void check_copies(struct check *c);

#endif
