/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_PASSTHROUGH_FILES_H
#define UCFS_PASSTHROUGH_FILES_H

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
struct passthrough_files {
	struct passthrough *passthrough;
	pthread_mutex_t *lock; /* protects the list */
	LIST_HEAD(, passthrough_file) list;
};

struct passthrough_file {
	LIST_ENTRY(passthrough_file) link;
	uint64_t ino;
	int id; /* backing id; 0: streamed */
	unsigned handles;
};

/*
 * Decide how a new handle of the file `f` with inode `ino` is read.  `*out` is NULL
 * if the file is always streamed; otherwise each open needs one passthrough_file_close.
 * 0, or a negative errno with a message if the shard cannot be read.
 */
int passthrough_file_open(struct passthrough_files *p, uint64_t ino, struct uckpt_file *f,
			  struct passthrough_file **out, struct uckpt_error *err);
void passthrough_file_close(struct passthrough_files *p, struct passthrough_file *file);

#endif
