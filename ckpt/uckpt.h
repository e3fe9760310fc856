/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libuckpt: the trees that ucfs mounts, without a mount.
 *
 * A context opens one source: a run, a tag, a pack, or a Hugging Face directory, also on a server.
 * The files that a mount of it would show are then looked up, listed and read:
 *
 *     struct uckpt *u = uckpt_new();
 *     uckpt_open(u, (const char *[]){ "/data/run" }, 1, &err);
 *     uckpt_find(u, "global_step10_universal/zero/lm_head.weight/fp32.pt", &node, &err);
 *     uckpt_file_open(u, node, &f, &err);
 *     uckpt_file_read(f, buf, size, offset, &err);
 *
 * and the commands of ucckpt (ucckpt(1)) are functions.
 *
 * Contexts are independent.  Threads may share an open context, and the files and directories open
 * in it; uckpt_set, uckpt_set_calls and uckpt_open must come first.  A forked child must open its
 * own context: using its parent's fails, and cannot free it.  The library prints nothing, installs
 * no signal handler, and never ends the process.
 *
 * A function that returns an int or int64_t returns a negative errno if it fails, and fills in
 * `err`, which may be NULL.  The text names the file and the cause; it is empty if strerror()
 * describes the error, for example for a name that does not exist.  A NULL that a function does not
 * allow, or an invalid node number, is also an error.  Freed or closed objects must not be used.
 */
#ifndef UCKPT_H
#define UCKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

struct iovec;
struct ucfs_extents; /* from <ucfs/ucfs_ioctl.h> */
struct ucfs_literal;
struct ucfs_source;

struct uckpt;
struct uckpt_dir;
struct uckpt_file;

#define UCKPT_ERROR_MAX 512

struct uckpt_error {
	char text[UCKPT_ERROR_MAX]; /* UTF-8 that a terminal may show */
};

/* "0.1.0" */
const char *uckpt_version(void);

/* Return a context with the default options; NULL when memory runs out. */
struct uckpt *uckpt_new(void);

/* Close the source.  All its files and directories must have been closed.  NULL is
 * allowed. */
void uckpt_free(struct uckpt *u);

/*
 * Set an option, such as "crc=zero" or "replace": the options of ucfs(1) about the files shown and
 * about servers, and the options of ucckpt's commands with these names: readers, jobs, part,
 * no_strict, rtol, atol.  -ENOENT, with a suggested name, for an unknown option, -EINVAL for a
 * wrong or missing value, -EBUSY once a source is open.
 */
int uckpt_set(struct uckpt *u, const char *option, struct uckpt_error *err);

/* Return name `i` of the options, such as "crc=" or "replace" (a trailing '=' means that a value is
 * required); NULL after the last. */
const char *uckpt_option_name(size_t i);

/* Functions that the library calls while it works, on any of its threads; each may be NULL. */
struct uckpt_calls {
	void *arg; /* passed to all of them */
	/* A problem that does not prevent serving: a tag left out, a corrected defect. */
	void (*warning)(void *arg, const char *text);
	void (*note)(void *arg, const char *text);
	/* Progress of the main work, in bytes: `done` of `total`; 0 when it begins.  `total` is
	 * 0 if unknown, as in uckpt_diff.  A result other than 0 stops the work, which then
	 * fails with -EINTR. */
	int (*progress)(void *arg, uint64_t done, uint64_t total);
	/* Progress of preparatory work, such as opening a source: `done` of `total` items of the
	 * phase `what`, for example "reading shards"; `total` is 0 if unknown. */
	void (*step)(void *arg, const char *what, uint64_t done, uint64_t total);
	/* A piece of a report, from uckpt_info and the other commands. */
	void (*report)(void *arg, const char *text, size_t len);
	/* Let the caller add its own lines to .ucfs/errors and .ucfs/stats by calling `put`. */
	void (*errors)(void *arg, void (*put)(void *to, const char *text), void *to);
	void (*stats)(void *arg, void (*put)(void *to, const char *text), void *to);
};

/* `*calls` is copied. */
void uckpt_set_calls(struct uckpt *u, const struct uckpt_calls *calls);

/*
 * Open a source: a directory, a pack, a URL, or several whose files are one checkpoint.
 * Checks that it can be served: opens the tag, or for a run the newest usable tag; the others are
 * opened on first use.  Paths are copied.
 */
int uckpt_open(struct uckpt *u, const char *const *paths, size_t n,
	       struct uckpt_error *err);

/* Return the name of the source, even if it could not be opened; and the absolute path or URL of
 * its directory `i`, NULL after the last.  The context owns the strings. */
const char *uckpt_source_name(const struct uckpt *u);
const char *uckpt_source_root(const struct uckpt *u, size_t i);

/* Is the root a view, of a tag or of Hugging Face weights, and not a run? */
bool uckpt_is_view(const struct uckpt *u);

/*
 * Files and directories are numbered.  A number is valid until the context is freed, and the
 * numbers of a view's files always mean the same bytes: a tag that is saved again gets new numbers.
 * Files of one view have the same `node >> UCFS_PLAN_SHIFT`.
 */
#define UCKPT_ROOT UINT64_C(1)

struct uckpt_attr {
	uint64_t node;
	uint64_t size;	 /* in bytes; exact for a view's file even before data is read */
	uint64_t blocks; /* in units of 512 bytes */
	int64_t atime_ns, mtime_ns, ctime_ns; /* nanoseconds since 1970 */
	uint32_t mode; /* S_IFDIR, S_IFREG or S_IFLNK, and permissions; as stat(2) */
	uint32_t nlink, uid, gid, blksize;
	double timeout; /* seconds for which a cache may keep the attributes */
};

/* Find the node at a path below the root, with '/' between names; "" is the root.  Follows the
 * run's symbolic links unless they lead out of it.  -ENOENT, -ENOTDIR, -ELOOP. */
int uckpt_find(struct uckpt *u, const char *path, uint64_t *node,
	       struct uckpt_error *err);

/* Find a name in a directory.  `*timeout`, unless it is NULL, becomes the seconds for which a cache
 * may keep the result, even -ENOENT. -ENOENT has a message if the tag cannot have the view. */
int uckpt_lookup(struct uckpt *u, uint64_t dir, const char *name,
		 struct uckpt_attr *out, double *timeout, struct uckpt_error *err);

int uckpt_stat(struct uckpt *u, uint64_t node, struct uckpt_attr *out,
	       struct uckpt_error *err);

/* Read the target of a symbolic link, without a terminating null byte; returns its
 * length. */
int uckpt_readlink(struct uckpt *u, uint64_t node, char *buf, size_t size);

/* If the root is a view, has its tag been saved again since the last call, so that its listing
 * has changed? */
bool uckpt_renew(struct uckpt *u);

/*
 * Directories.  One of the run is a snapshot; one of a view never changes.  `.` and `..`
 * are not listed.
 */
struct uckpt_entry {
	uint64_t node;
	uint32_t type; /* S_IFDIR, S_IFREG, S_IFLNK, or 0: unknown, look it up */
	uint32_t cheap; /* private */
	char name[256];
};

int uckpt_dir_open(struct uckpt *u, uint64_t node, struct uckpt_dir **out,
		   struct uckpt_error *err);

/* Get the entry at `*pos` (0 for the first) and advance `*pos`.  Returns 1, or 0 at the end.
 * Threads may read a directory at different positions. */
int uckpt_dir_next(struct uckpt_dir *d, uint64_t *pos, struct uckpt_entry *out,
		   struct uckpt_error *err);

/* Get the attributes of the entry just returned, and the seconds for which its name stays valid, as
 * uckpt_lookup; -EAGAIN if that would make a view, or need a request to a remote store. */
int uckpt_dir_stat(struct uckpt_dir *d, const struct uckpt_entry *e,
		   struct uckpt_attr *out, double *timeout);

uint64_t uckpt_dir_parent(const struct uckpt_dir *d);
void uckpt_dir_close(struct uckpt_dir *d);

/* Files. */
int uckpt_file_open(struct uckpt *u, uint64_t node, struct uckpt_file **out,
		    struct uckpt_error *err);
void uckpt_file_close(struct uckpt_file *f);

uint64_t uckpt_file_size(const struct uckpt_file *f);

/* Read up to `len` bytes at `offset`, fewer only at the end of the file; returns their number.
 * Prefetches for a sequential reader. */
int64_t uckpt_file_read(struct uckpt_file *f, void *buf, size_t len,
			uint64_t offset, struct uckpt_error *err);

/* Get the extents of a view's file (runs of shards), their source files, and literal bytes.  Same
 * as the ioctls of a mounted file (<ucfs/ucfs_ioctl.h>), with their structures and errors; -ENOTTY
 * for a file of the run. */
int uckpt_file_extents(struct uckpt_file *f, struct ucfs_extents *x);
int uckpt_file_source(struct uckpt_file *f, struct ucfs_source *s);
int uckpt_file_literal(struct uckpt_file *f, struct ucfs_literal *l);

/*
 * Describe the tensors of a parameter's .pt file, whose only tensor has no name, of a
 * pytorch_model.bin or of a .safetensors file as a JSON array, in pieces, by calling `put`:
 *
 *     [{"name": "", "dtype": "float32", "shape": [3, 4], "offset": 1024, "bytes": 48}]
 *
 * dtypes have torch's names.  The elements lie at `offset` of the file in row-major order,
 * little-endian.  A view that skips or repeats elements has "strides", too, in elements; its bytes
 * are those from its first element to its last.  A number of a .pt file has a "value" instead of
 * "offset" and "bytes"; null if it is not finite.  -ENOTSUP for other files.  Reads no tensor.
 */
int uckpt_file_tensors(struct uckpt_file *f,
		       void (*put)(void *arg, const char *text, size_t len),
		       void *arg, struct uckpt_error *err);

/*
 * Commands, one at a time per context.  Each takes the paths of one source, as uckpt_open, and
 * needs no open source.  A run means its newest tag.  Reports go to uckpt_calls.report, as text or
 * JSON (ucckpt(1) has its keys).
 */
#define UCKPT_JSON 1u
#define UCKPT_QUICK 2u	/* info: read one rank's files only */
#define UCKPT_DATA 4u	/* check: read tensors, too */
#define UCKPT_STRICT 8u /* diff: different types are differences, too */
#define UCKPT_HTML 32u	/* info: an HTML page, with a picture of where elements lie */
#define UCKPT_ALL 16u	/* info: a line for each parameter; diff: also equal states */

/* Return 0, or 1 if problems were found. */
int uckpt_info(struct uckpt *u, const char *const *paths, size_t n,
	       unsigned flags, struct uckpt_error *err);
int uckpt_check(struct uckpt *u, const char *const *paths, size_t n,
		unsigned flags, struct uckpt_error *err);

/* Return 0 if equal, 1 if different. */
int uckpt_diff(struct uckpt *u, const char *a, const char *b, unsigned flags,
	       struct uckpt_error *err);

struct uckpt_done {
	uint64_t files, bytes;
	uint64_t packed; /* size of the pack */
};

/* Write the tree that the options choose (view, ranks, stage, ...) to the new directory `dest`,
 * which appears whole or not at all; succeeds if the directory already has the same bytes.  If it
 * fails with done->files above 0, that many files are kept in a directory beside `dest`, which a
 * note names, and the same call continues with the others.  -EINVAL for options of another kind of
 * tree. */
int uckpt_convert(struct uckpt *u, const char *const *paths, size_t n,
		  const char *dest, struct uckpt_done *done,
		  struct uckpt_error *err);

/* Choose the items that this process handles according to option `part`, of `n` items with these
 * sizes; all items without that option.  Each process must pass the same items in the same order.
 * Fails only with -ENOMEM. */
int uckpt_share(struct uckpt *u, const uint64_t *sizes, size_t n, bool *mine,
		struct uckpt_error *err);

/* Write a directory to a new pack; restore a pack to the new directory `dest` or, if that is NULL,
 * only decode and verify it. */
int uckpt_pack(struct uckpt *u, const char *dir, const char *dest,
	       struct uckpt_done *done, struct uckpt_error *err);
int uckpt_unpack(struct uckpt *u, const char *pack, const char *dest,
		 struct uckpt_done *done, struct uckpt_error *err);

/*
 * For servers, such as ucfs.
 */

/* The users that may read an open file or list an open directory: the mount's user or, in a shared
 * source (option allow_other), the users that these permission bits allow. */
struct uckpt_readers {
	uint32_t uid, gid, mode; /* mode 0444: all users */
};
void uckpt_file_readers(const struct uckpt_file *f, struct uckpt_readers *out);
void uckpt_dir_readers(const struct uckpt_dir *d, struct uckpt_readers *out);

/* Does the file belong to a view, so that it never changes? */
bool uckpt_file_is_immutable(const struct uckpt_file *f);
bool uckpt_dir_is_immutable(const struct uckpt_dir *d);

/* Get a new descriptor of a local file with the same bytes, for the kernel to read; -1 if there is
 * none.  Returns 0, or -EIO if that file is not the planned one. */
int uckpt_file_descriptor(struct uckpt_file *f, int *fd, struct uckpt_error *err);

/*
 * Bytes of a file as pieces of memory, mostly mapped shards, to pass to the kernel, which returns
 * EFAULT if a shard was truncated in the meantime; a program that read the memory itself would get
 * SIGBUS.
 */
struct uckpt_map {
	const struct iovec *iov;
	int n;
	size_t len;
};
int uckpt_file_map(struct uckpt_file *f, size_t len, uint64_t offset,
		   struct uckpt_map **out, struct uckpt_error *err);

/* Check that the pieces still belong to the planned shards; -EIO if not. */
int uckpt_map_check(struct uckpt_map *m, struct uckpt_error *err);

/* Release the pieces.  `sent`: the bytes were used; they extend the file's checksum, so that a
 * reader need not wait for it at the end. */
void uckpt_map_free(struct uckpt_map *m, bool sent);

/* Prefetch data that the first readers of a remote source need.  May block for a long time. */
void uckpt_prefetch(struct uckpt *u);

/* Free the memory of prefetched bytes. */
void uckpt_trim(struct uckpt *u);

/* Fail all current and future requests to servers. */
void uckpt_stop(struct uckpt *u);

/* Replace user, password and query of URLs in `text` by asterisks, in place. */
void uckpt_hide_secrets(char *text);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
