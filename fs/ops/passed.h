/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_PASSED_H
#define UCFS_PASSED_H

#include <pthread.h>
#include <stdint.h>
#include <sys/queue.h>

struct passthrough;
struct uckpt_error;
struct uckpt_file;

/*
 * Open files that show a shard unchanged, which the kernel can read by itself.  All
 * handles of such a file are passed through with the same backing id, or all are
 * streamed: the kernel answers a mixture with EIO.  Thread-safe; valid when
 * zero-initialised but for `lock` and `passthrough`.
 */
struct passed_files {
	struct passthrough *passthrough;
	pthread_mutex_t *lock; /* protects the list */
	LIST_HEAD(, passed) list;
};

struct passed {
	LIST_ENTRY(passed) link;
	uint64_t ino;
	int id; /* backing id; 0: streamed */
	unsigned handles;
};

/*
 * Decide how a new handle of the file `f` with inode `ino` is read.  `*out` is NULL
 * if the file is always streamed; otherwise each open needs one passed_close.
 * 0, or a negative errno with a message if the shard cannot be read.
 */
int passed_open(struct passed_files *p, uint64_t ino, struct uckpt_file *f,
		struct passed **out, struct uckpt_error *err);
void passed_close(struct passed_files *p, struct passed *file);

#endif
