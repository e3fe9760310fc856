/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_RANKFILE_H
#define UCFS_RANKFILE_H

/*
 * Files that programs write beside a tag for each rank: the random states of the
 * Hugging Face Trainer and of Accelerate.  In a run that is re-cut from n to
 * another number of ranks, a missing file of rank r is a copy of that of old rank
 * r mod n.
 */

/* Find the file in `dir` that replaces the missing `name` in a run of `ranks`
 * ranks.  The caller frees `*path`.  0, -ENOENT if there is none, or -ENOMEM. */
int rankfile_find(const char *dir, const char *name, unsigned ranks,
		  char **path);

#endif
