/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt extract: writes files that a mount would show below a directory.  Each has no name, or a
 * temporary one, until it is on the disk.  Directories are opened one by one without following
 * links, so that nothing is written elsewhere.
 *
 * The same command resumes an interrupted extraction: existing files are compared first, and kept
 * if they are right.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/text.h"
#include "cmd/cmd.h"
#include "cmd/find.h"
#include "cmd/progress.h"

#define CHUNK (4 << 20) /* bytes read at once */
#define WRITERS 8	/* files written at once: each writer waits for the disk */
#define TMP_NAME ".ucckpt.tmp-%ld-%zu" /* process, writer */
#define PROC_PATH_LEN 32

struct extract {
	struct uckpt *u;
	const char *dest;
	int dir; /* descriptor of `dest` */
	struct found_list files;
	bool *mine;  /* by file: this process writes it */
	bool *there; /* by file: it exists, and is compared */
	size_t nthere;
	uint64_t total; /* bytes */
	bool writing;   /* existing files have been compared; write the others */
	atomic_size_t next; /* next file for a writer */
	pthread_mutex_t lock; /* protects the rest while there are writers: */
	struct uckpt_done done;
	int rc; /* the first failure; its message is in `err` */
	struct uckpt_error err;
};

/* A thread that writes one file after the other. */
struct writer {
	struct extract *x;
	pthread_t thread;
	char tmp[64]; /* temporary name of an incomplete file, */
	bool named;   /* if it has one */
	char *buf; /* buffer of 2 * CHUNK bytes */
	struct uckpt_error err;
};

static int fail_errno(const struct extract *x, const char *what, const char *path,
		      struct uckpt_error *err)
{
	const int rc = -errno;

	snprintf(err->text, sizeof(err->text), "%s/%s: %s: %s", x->dest, path,
		 what, strerror(errno));
	return rc;
}

/* Open the directory of a file, and make it if it is missing. */
static int open_parent(struct writer *w, const char *path, const char **name)
{
	const struct extract *x = w->x;
	int fd = fcntl(x->dir, F_DUPFD_CLOEXEC, 0);
	const char *slash;

	for (*name = path; fd >= 0 && (slash = strchr(*name, '/'));
	     *name = slash + 1) {
		char *part = strndup(*name, (size_t)(slash - *name));
		const int above = fd;

		fd = -1;
		if (part && (mkdirat(above, part, 0777) == 0 || errno == EEXIST))
			fd = openat(above, part,
				    O_RDONLY | O_DIRECTORY | O_NOFOLLOW |
					    O_CLOEXEC);
		free(part);
		close(above);
	}
	return fd < 0 ? fail_errno(x, "cannot open its directory", path, &w->err)
		      : fd;
}

/* Count bytes that were written.  -EINTR. */
static int count(struct extract *x, uint64_t bytes)
{
	uint64_t done;

	pthread_mutex_lock(&x->lock);
	done = x->done.bytes += bytes;
	pthread_mutex_unlock(&x->lock);
	return progress_show(NULL, done, x->total) ? -EINTR : 0;
}

static int copy(struct writer *w, struct uckpt_file *from, FILE *to, const char *path)
{
	int64_t n;
	int rc = 0;

	for (uint64_t at = 0; !rc; at += (uint64_t)n) {
		n = uckpt_file_read(from, w->buf, CHUNK, at, &w->err);
		if (n < 0)
			return (int)n;
		if (n == 0)
			break;
		if (fwrite(w->buf, 1, (size_t)n, to) != (size_t)n)
			return fail_errno(w->x, "cannot write", path, &w->err);
		rc = count(w->x, (uint64_t)n);
	}
	return !rc && (fflush(to) || fsync(fileno(to)) < 0)
		       ? fail_errno(w->x, "cannot write", path, &w->err)
		       : rc;
}

static int compare_with(struct writer *w, struct uckpt_file *want, int fd, const char *path)
{
	char *have = w->buf + CHUNK;
	int64_t n;
	int rc;

	for (uint64_t at = 0;; at += (uint64_t)n) {
		n = uckpt_file_read(want, w->buf, CHUNK, at, &w->err);
		if (n < 0)
			return (int)n;
		if (pread(fd, have, n ? (size_t)n : 1, (off_t)at) != n ||
		    memcmp(w->buf, have, (size_t)n) != 0) {
			errno = EEXIST;
			return fail_errno(w->x, "not written", path, &w->err);
		}
		rc = w->x->writing || !n ? 0 : count(w->x, (uint64_t)n);
		if (rc || !n)
			return rc;
	}
}

/* Compare an existing file.  -EEXIST if it differs. */
static int compare(struct writer *w, struct uckpt_file *want, int dir, const char *name,
		   const char *path)
{
	const int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	int rc;

	if (fd < 0)
		return fail_errno(w->x, "not written", path, &w->err);
	rc = compare_with(w, want, fd, path);
	close(fd);
	return rc;
}

/* Return the path, in /proc, of a file without a name.  False if it could not get a name that
 * way. */
static bool get_path(int fd, char path[PROC_PATH_LEN])
{
	snprintf(path, PROC_PATH_LEN, "/proc/self/fd/%d", fd);
	return access(path, F_OK) == 0;
}

/* Create a file without a name; or, if the file system has no O_TMPFILE, with a temporary name
 * and a lock, which distinguishes it from files of killed processes. */
static int create_tmp(struct writer *w, int dir, mode_t mode)
{
	int fd = openat(dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
	char path[PROC_PATH_LEN];
	struct stat st;

	w->named = fd < 0 || !get_path(fd, path);
	if (!w->named)
		return fd;
	/* Another process may remove it before it is locked. */
	do {
		if (fd >= 0)
			close(fd);
		fd = openat(dir, w->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
		if (fd >= 0)
			flock(fd, LOCK_EX);
	} while (fd >= 0 && fstat(fd, &st) == 0 && !st.st_nlink);
	return fd;
}

static int give_name(const struct writer *w, int fd, int dir, const char *name)
{
	char path[PROC_PATH_LEN];

	if (w->named)
		return renameat(dir, w->tmp, dir, name);
	get_path(fd, path);
	return linkat(AT_FDCWD, path, dir, name, AT_SYMLINK_FOLLOW);
}

/* Write a file into directory `dir`; it gets its name when it is complete. */
static int write_in(struct writer *w, struct uckpt_file *from, const struct uckpt_attr *a,
		    int dir, const char *name, const char *path)
{
	const struct timespec mtime = { a->mtime_ns / 1000000000,
					a->mtime_ns % 1000000000 };
	const int fd = create_tmp(w, dir, (a->mode & 0777) | S_IWUSR);
	FILE *to = fd < 0 ? NULL : fdopen(fd, "w");
	int rc = to ? copy(w, from, to, path)
		    : fail_errno(w->x, "cannot create", path, &w->err);

	if (!rc && (futimens(fd, (const struct timespec[]){ mtime, mtime }) < 0 ||
		    give_name(w, fd, dir, name) < 0))
		rc = errno == EEXIST ? compare(w, from, dir, name, path)
				     : fail_errno(w->x, "cannot create", path, &w->err);
	if (rc && fd >= 0 && w->named)
		unlinkat(dir, w->tmp, 0);
	if (to)
		fclose(to);
	else if (fd >= 0)
		close(fd);
	return rc;
}

static int write_file(struct writer *w, struct uckpt_file *from,
		      const struct uckpt_attr *a, const char *path)
{
	const char *name;
	const int dir = open_parent(w, path, &name);
	int rc;

	if (dir < 0)
		return dir;
	rc = w->x->writing ? write_in(w, from, a, dir, name, path)
			   : compare(w, from, dir, name, path);
	close(dir);
	return rc;
}

static int extract_file(struct writer *w, const struct found *f)
{
	struct uckpt *u = w->x->u;
	struct uckpt_file *file = NULL;
	struct uckpt_attr attr;
	const int rc = uckpt_stat(u, f->node, &attr, &w->err)
			       ?: uckpt_file_open(u, f->node, &file, &w->err)
			       ?: write_file(w, file, &attr, f->path);

	uckpt_file_close(file);
	if (rc && rc != -EINTR && !*w->err.text)
		snprintf(w->err.text, sizeof(w->err.text), "%s: %s", f->path,
			 strerror(-rc));
	return rc;
}

/* Record the result of a file.  False if no more files must be begun. */
static bool note_end(struct extract *x, int rc, const struct uckpt_error *err)
{
	bool going_on;

	pthread_mutex_lock(&x->lock);
	x->done.files += !rc;
	if (rc && !x->rc) {
		x->rc = rc;
		x->err = *err;
	}
	going_on = !x->rc;
	pthread_mutex_unlock(&x->lock);
	return going_on;
}

static void *write_files(void *arg)
{
	struct writer *w = arg;
	struct extract *x = w->x;
	size_t i;

	while ((i = atomic_fetch_add(&x->next, 1)) < x->files.n)
		if (x->files.v[i].type == S_IFREG && x->mine[i] && x->there[i] != x->writing &&
		    !note_end(x, extract_file(w, &x->files.v[i]), &w->err))
			break;
	return NULL;
}

/* Compare the existing files, or write the others. */
static int run_writers(struct extract *x, bool writing)
{
	struct writer w[WRITERS] = { 0 };
	size_t n = 0;

	x->writing = writing;
	x->next = 0;
	for (; n < WRITERS && n < x->files.n; n++) {
		w[n].x = x;
		w[n].buf = malloc(2 * CHUNK);
		snprintf(w[n].tmp, sizeof(w[n].tmp), TMP_NAME, (long)getpid(), n);
		if (!w[n].buf ||
		    pthread_create(&w[n].thread, NULL, write_files, &w[n])) {
			free(w[n].buf);
			break;
		}
	}
	if (!n && x->files.n)
		return -ENOMEM;
	while (n) {
		pthread_join(w[--n].thread, NULL);
		free(w[n].buf);
	}
	return x->rc;
}

/* Remove a temporary file of a killed process, which has no lock. */
static void remove_left(int dir, const char *name)
{
	const int fd = openat(dir, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	    flock(fd, LOCK_EX | LOCK_NB) == 0)
		unlinkat(dir, name, 0);
	close(fd);
}

/* Remove temporary files of killed processes from the directories to be written. */
static void remove_all_left(const struct extract *x, const char *path)
{
	const char *slash = strrchr(path, '/');
	char *parent = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
	const int fd = parent ? openat(x->dir, parent,
				       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
			      : -1;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	char name[sizeof(((struct writer *)NULL)->tmp)];
	const struct dirent *e;
	size_t writer;
	long pid;

	while (dir && (e = readdir(dir)))
		if (sscanf(e->d_name, TMP_NAME, &pid, &writer) == 2 &&
		    snprintf(name, sizeof(name), TMP_NAME, pid, writer) > 0 &&
		    strcmp(name, e->d_name) == 0)
			remove_left(fd, name);
	if (dir)
		closedir(dir);
	else if (fd >= 0)
		close(fd);
	free(parent);
}

/* Are both files in the same directory? */
static bool are_siblings(const struct found *a, const struct found *b)
{
	const char *x = strrchr(a->path, '/'), *y = strrchr(b->path, '/');
	const size_t n = x ? (size_t)(x - a->path) : 0;

	return !x == !y && (!x || (n == (size_t)(y - b->path) &&
				   memcmp(a->path, b->path, n) == 0));
}

/* Choose the files that this process writes.  Refuses to overwrite other files before anything
 * is written. */
static int survey_own(struct extract *x, const uint64_t *sizes)
{
	const struct found_list *l = &x->files;
	struct stat st;
	int rc = uckpt_share(x->u, sizes, l->n, x->mine, &x->err);

	for (size_t i = 0; !rc && i < l->n; i++) {
		if (!x->mine[i])
			continue;
		x->total += sizes[i];
		if (l->v[i].type != S_IFREG)
			cmd_say("warning: %s is left out: no file, nor a link to one",
				l->v[i].path);
		if (i == 0 || !are_siblings(&l->v[i - 1], &l->v[i]))
			remove_all_left(x, l->v[i].path);
		if (fstatat(x->dir, l->v[i].path, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		errno = EEXIST;
		if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != sizes[i])
			return fail_errno(x, "not written", l->v[i].path, &x->err);
		x->there[i] = true;
		x->nthere++;
	}
	return rc;
}

static int survey(struct extract *x)
{
	const struct found_list *l = &x->files;
	uint64_t *sizes = calloc(l->n + 1, sizeof(*sizes));
	struct uckpt_attr attr;
	int rc;

	x->mine = calloc(l->n + 1, sizeof(*x->mine));
	x->there = calloc(l->n + 1, sizeof(*x->there));
	rc = sizes && x->mine && x->there ? 0 : -ENOMEM;
	for (size_t i = 0; !rc && i < l->n; i++) {
		rc = uckpt_stat(x->u, l->v[i].node, &attr, &x->err);
		sizes[i] = rc ? 0 : attr.size;
	}
	rc = rc ?: survey_own(x, sizes);
	free(sizes);
	return rc;
}

static int open_dest(struct extract *x)
{
	if (mkdir(x->dest, 0777) < 0 && errno != EEXIST)
		return fail_errno(x, "cannot create", "", &x->err);
	x->dir = open(x->dest, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return x->dir < 0 ? fail_errno(x, "cannot open", "", &x->err) : 0;
}

static int extract(struct extract *x, const char *source, char *const *patterns,
		   int npatterns)
{
	int rc = uckpt_open(x->u, &source, 1, &x->err);

	for (int i = 0; !rc && i < npatterns; i++)
		rc = find_pattern(x->u, patterns[i], true, &x->files, &x->err);
	if (rc)
		return rc;
	found_sort(&x->files);
	rc = open_dest(x) ?: survey(x);
	if (!rc && progress_show(NULL, 0, x->total))
		rc = -EINTR;
	return rc ?: run_writers(x, false) ?: run_writers(x, true);
}

int cmd_extract(struct uckpt *u, int argc, char **argv)
{
	const struct cmd_option options[] = { CMD_PART };
	const struct cmd_syntax syntax = {
		"usage: ucckpt [-o OPTION,...] extract [--part I/N] SOURCE PATTERN... DIR\n"
		"\n"
		"Write the files that a mount of SOURCE would show below DIR, under their paths.  A\n"
		"PATTERN, such as 'TAG_hf/*', that matches a directory means all below it.  Files that\n"
		"exist are not overwritten; those that have the same bytes are left as they are.",
		NULL,
		options,
		COUNT(options),
		-1,
		NULL,
	};
	struct extract x = { .u = u, .dir = -1, .lock = PTHREAD_MUTEX_INITIALIZER };
	char there[SIZE_TEXT_LEN + 32] = "", number[SIZE_TEXT_LEN];
	int rc;

	if (!cmd_parse(u, argc, argv, &syntax, &rc))
		return rc;
	if (argc - optind < 3)
		return cmd_usage(argv[0], "expected SOURCE, PATTERN and DIR");
	x.dest = argv[argc - 1];
	progress_protect_output();
	rc = extract(&x, argv[optind], argv + optind + 1, argc - optind - 2);
	found_done(&x.files);
	free(x.mine);
	free(x.there);
	if (x.dir >= 0)
		close(x.dir);
	if (rc)
		return progress_exit(
			rc, x.dest,
			"files that are complete are left there, and the same command goes on",
			&x.err, CMD_FAILED);
	if (x.nthere)
		snprintf(there, sizeof(there), ", of which %s were there",
			 count_text(x.nthere, number));
	progress_print(x.dest, &x.done, there);
	return CMD_OK;
}
