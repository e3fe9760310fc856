/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_OUTPUT_H
#define UCKPT_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

/* Write all of `len` bytes at the file's position, or at `off`: system calls may write less, or be
 * interrupted.  Returns 0 or a negative errno, and also sets errno. */
int write_all(int fd, const void *p, size_t len)
	__attribute__((warn_unused_result));
int pwrite_all(int fd, const void *p, size_t len, uint64_t off)
	__attribute__((warn_unused_result));

/* Create the file `path` with `text`, and sync both. */
int write_text(const char *path, const char *text, struct errmsg *err);

/* Make the missing directories above `path`.  Stores the length of the first one in `*made`, unless
 * `*made` is already set. */
int make_parents(char *path, size_t *made, struct errmsg *err);

/* Remove the directories that make_parents made, from the last one upwards, while they are
 * empty.  Cuts `path`. */
void unmake_parents(char *path, size_t made);

#define OUTPUT_JOURNAL ".ucfs-convert" /* no tree has a file of this name */

enum output_kind {
	/* A file, readable by its owner alone until the caller gives it another
	 * mode. */
	OUTPUT_FILE,
	/* A directory.  Missing parents are made. */
	OUTPUT_DIR,
	/* As OUTPUT_DIR, but take over the temporary directory of an interrupted process
	 * (output_keep), if it has the file OUTPUT_JOURNAL. A directory without that file is not
	 * ours, whatever its name. */
	OUTPUT_DIR_RESUMED,
	/* As OUTPUT_DIR, but atomically replace an existing directory. */
	OUTPUT_DIR_OVER,
};

/*
 * A file or a directory that appears whole or not at all: it is written, or filled,
 * under a temporary name beside its final one, and renamed when it is complete.
 */
struct output {
	enum output_kind kind;
	int fd;      /* the file, or the directory being filled */
	char *path;  /* as requested; of a directory, without trailing slashes */
	char *final; /* `path` with a directory's symbolic links resolved */
	char *tmp;   /* current path; NULL: nothing to remove */
	size_t made; /* length of the first directory of `final` that we created */
	bool taken;  /* an interrupted process has filled part of it */
};

/* Begin `path`, which must not exist yet or be an empty directory for one.  -EEXIST if there is
 * something already, -EINVAL for names that a rename cannot create, or the system's error. */
int output_open(struct output *o, const char *path, enum output_kind kind,
		struct errmsg *err);

/* Begin a directory that several processes fill: all pass the same `suffix`, a text of at least
 * eight characters.  The temporary directory is never removed: close it with output_keep unless
 * it was committed.  Errors as output_open. */
int output_open_shared(struct output *o, const char *path, const char *suffix,
		       struct errmsg *err);

/*
 * Rename the output to its final name, and write that name into the file `pointer` beside it
 * ("latest_universal"; NULL: none).  The caller has synced the content of a directory; this
 * function syncs a file's content and the names.  If only syncing the names fails, both are in
 * place, and the error says that they "cannot sync".
 */
int output_commit(struct output *o, const char *pointer, struct errmsg *err);

/* Let output_close leave the temporary directory for a later OUTPUT_DIR_RESUMED. */
void output_keep(struct output *o);

/* Close the output, and remove it unless it was committed or kept. */
void output_close(struct output *o);

/* If `tmp` is the name of a temporary of NAME, which begins at tmp + 1, return the length of NAME;
 * else 0. */
size_t output_tmp_len(const char *tmp);

/* Remove a file, or a directory with its contents, as far as possible.  Returns 0, or a negative
 * errno (also in errno) if some of it is left. */
int output_remove_tree(const char *path);

/* Remove the temporary directory `path` unless a living process has locked it. */
void output_sweep(const char *path);

#endif
