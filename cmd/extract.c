/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt extract: writes files that a mount would show below a directory.  Each has a
 * temporary name until it is on the disk.  Directories are opened one by one without
 * following links, so that nothing is written elsewhere.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "cmd/find.h"
#include "cmd/progress.h"

#define CHUNK (4 << 20) /* bytes that are read at once */
#define WRITERS 8	/* files that are written at once: each waits for the disk */

struct extract {
	struct uckpt *u;
	const char *dest;
	int dir; /* descriptor of `dest` */
	struct found_list files;
	uint64_t total; /* bytes */
	atomic_size_t next; /* file that no writer has begun */
	pthread_mutex_t lock; /* protects the rest once there are writers: */
	struct uckpt_done done;
	int rc; /* of the first failure, and its message */
	struct uckpt_error err;
};

/* A thread that writes one file after the other. */
struct writer {
	struct extract *x;
	pthread_t thread;
	char tmp[64]; /* the name of a file that is not yet complete */
	char *buf;
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

/* Open the directory of a file, and make it if it is not there. */
static int open_parent(struct writer *w, const char *path, const char **name)
{
	const struct extract *const x = w->x;
	int fd = fcntl(x->dir, F_DUPFD_CLOEXEC, 0);
	const char *slash;

	for (*name = path; fd >= 0 && (slash = strchr(*name, '/'));
	     *name = slash + 1) {
		char *const part = strndup(*name, (size_t)(slash - *name));
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

/* Write a file in directory `dir` under its temporary name, then rename it. */
static int write_in(struct writer *w, struct uckpt_file *from, const struct uckpt_attr *a,
		    int dir, const char *name, const char *path)
{
	const struct timespec mtime = { a->mtime_ns / 1000000000,
					a->mtime_ns % 1000000000 };
	const int fd = openat(dir, w->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
			      (a->mode & 0777) | S_IWUSR);
	FILE *const to = fd < 0 ? NULL : fdopen(fd, "w");
	int rc = to ? copy(w, from, to, path)
		    : fail_errno(w->x, "cannot create", path, &w->err);

	if (!rc && (futimens(fd, (const struct timespec[]){ mtime, mtime }) < 0 ||
		    renameat(dir, w->tmp, dir, name) < 0))
		rc = fail_errno(w->x, "cannot create", path, &w->err);
	if (rc && fd >= 0)
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
	rc = write_in(w, from, a, dir, name, path);
	close(dir);
	return rc;
}

static int extract_file(struct writer *w, const struct found *f)
{
	struct uckpt *const u = w->x->u;
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

/* Record how a file ended.  False if no more are to be begun. */
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
	struct writer *const w = arg;
	struct extract *const x = w->x;
	size_t i;

	while ((i = atomic_fetch_add(&x->next, 1)) < x->files.n)
		if (x->files.v[i].type == S_IFREG &&
		    !note_end(x, extract_file(w, &x->files.v[i]), &w->err))
			break;
	return NULL;
}

static int run_writers(struct extract *x)
{
	struct writer w[WRITERS] = { 0 };
	size_t n = 0;

	for (; n < WRITERS && n < x->files.n; n++) {
		w[n].x = x;
		w[n].buf = malloc(CHUNK);
		snprintf(w[n].tmp, sizeof(w[n].tmp), ".ucckpt.tmp-%ld-%zu",
			 (long)getpid(), n);
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

/* Sum up the sizes, and refuse what would be overwritten before anything is written. */
static int survey(struct extract *x)
{
	const struct found_list *const l = &x->files;
	struct uckpt_attr attr;
	struct stat st;
	int rc = 0;

	for (size_t i = 0; !rc && i < l->n; i++) {
		if (fstatat(x->dir, l->v[i].path, &st, AT_SYMLINK_NOFOLLOW) == 0) {
			errno = EEXIST;
			return fail_errno(x, "not written", l->v[i].path, &x->err);
		}
		rc = uckpt_stat(x->u, l->v[i].node, &attr, &x->err);
		x->total += rc ? 0 : attr.size;
		if (!rc && l->v[i].type != S_IFREG)
			cmd_say("warning: %s is left out: no file, nor a link to one",
				l->v[i].path);
	}
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
	return rc ?: run_writers(x);
}

int cmd_extract(struct uckpt *u, int argc, char **argv)
{
	const struct cmd_syntax syntax = {
		"usage: ucckpt [-o OPTION,...] extract SOURCE PATTERN... DIR\n"
		"\n"
		"Write the files that a mount of SOURCE would show below DIR, under their paths.  A\n"
		"PATTERN, such as 'TAG_hf/*', that matches a directory means all below it.  Files that\n"
		"exist are not overwritten.",
		NULL,
		NULL,
		0,
		-1,
		NULL,
	};
	struct extract x = { .u = u, .dir = -1, .lock = PTHREAD_MUTEX_INITIALIZER };
	int rc;

	if (!cmd_parse(u, argc, argv, &syntax, &rc))
		return rc;
	if (argc - optind < 3)
		return cmd_usage(argv[0], "expected SOURCE, PATTERN and DIR");
	x.dest = argv[argc - 1];
	progress_catch_signals();
	rc = extract(&x, argv[optind], argv + optind + 1, argc - optind - 2);
	found_done(&x.files);
	if (x.dir >= 0)
		close(x.dir);
	if (rc)
		return progress_fail(rc, x.dest,
				     "files that are complete are left there",
				     &x.err);
	progress_print(x.dest, &x.done, "");
	return CMD_OK;
}
