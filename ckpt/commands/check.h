/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CHECK_H
#define UCKPT_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/context.h"
#include "ckpt/commands/report.h"
#include "ckpt/format/names.h"

struct errmsg;
struct param;
struct share;
struct slice;

/* A file written by a rank. */
struct check_file {
	char *path;
	struct ckname id; /* by its name */
	bool mine; /* this process reads its bytes, with `data` */
	bool is_zip;
	bool summed; /* its zip directory holds checksums */
	/* A buffer of a module, with the checksum of its storage.  For model states of ZeRO-3,
	 * which each data-parallel rank writes; sorted by name. */
	struct check_buffer {
		char *name; /* must be first: array_by_text */
		uint32_t crc;
	} * buffers;
	size_t nbuffers, buffers_cap;
	uint64_t content; /* hash of an optimizer shard's checksums; 0: it has only zeros, or none */
	struct notes problems;
};

/* Two replicas, whose elements must be equal. */
struct check_pair {
	const struct param *param;
	const struct slice *a, *b;
	/* Compare the whole parameter read from this replica of each piece (merge.replica) with
	 * that from the first; 0: compare the two slices. */
	size_t replica;
	bool stages; /* slices of two pipeline stages */
	struct notes differences, problems;
};

/* The state and findings of uckpt_check. */
struct check {
	struct report report;
	bool data; /* read tensors as well */
	const struct share *share; /* selects the files and the other checks of this process */

	struct check_file *files;
	size_t nfiles;
	struct shards *shards; /* shards of the files, with the same numbers */
	struct check_pair *pairs;
	size_t npairs, pairs_cap;
	uint64_t bytes;  /* of all files */
	uint64_t opened; /* number of opened files of the universal tree; 0: it cannot be made, or
			  * was not tried */
	struct progress progress; /* of reading tensors */

	struct notes forms; /* options of convert that would succeed */
};

/* The parts of a check.  Each adds its findings; none stops at a problem.  Errors are -ENOMEM,
 * and -EINTR if the caller of the library stops the work. */

int check_list_files(struct check *c, struct errmsg *err);

/* With `data`, choose the files whose bytes this process reads, and add their size to `*bytes`. */
int check_choose_files(struct check *c, uint64_t *bytes, struct errmsg *err);

/* Check each file by itself: its zip directory, the headers of its members, and
 * the facts and the tensors in model-states files.  With `data`, compare every member with its
 * checksum.  Warn of buffers that differ between data-parallel ranks. */
int check_files(struct check *c, struct errmsg *err);

void check_files_done(struct check *c);

/* If no problems were found: check every form that uckpt_convert writes, and list in
 * `forms`, as options of `ucckpt convert`, those that it can write for this checkpoint. */
void check_forms(struct check *c);

/* List the pairs to compare, and add the bytes of one side to `*bytes`. */
int check_list_pairs(struct check *c, uint64_t *bytes, struct errmsg *err);

int check_pairs(struct check *c, struct errmsg *err);

#endif
