/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt extract: writes files that a mount would show below a directory.  Each has a
 * temporary name until it is on the disk.  Directories are opened one by one without
 * following links, so that nothing is written elsewhere.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "cmd/find.h"
#include "cmd/progress.h"

#define CHUNK (4 << 20) /* bytes that are read at once */

struct extract {
	struct uckpt *u;
	const char *dest;
	int dir;      /* descriptor of `dest` */
	char tmp[64]; /* the name of a file that is not yet complete */
	char *buf;
	struct uckpt_done done;
	uint64_t total; /* bytes */
	struct uckpt_error err;
};

static int fail_errno(struct extract *x, const char *what, const char *path)
{
	const int rc = -errno;

	snprintf(x->err.text, sizeof(x->err.text), "%s/%s: %s: %s", x->dest,
		 path, what, strerror(errno));
	return rc;
}

/* Open the directory of a file, and make it if it is not there. */
static int open_parent(struct extract *x, const char *path, const char **name)
{
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
	return fd < 0 ? fail_errno(x, "cannot open its directory", path) : fd;
}

static int write_all(int fd, const char *p, int64_t len)
{
	for (ssize_t n; len > 0; p += n, len -= n) {
		n = write(fd, p, (size_t)len);
		if (n < 0 && errno != EINTR)
			return -1;
		n = n < 0 ? 0 : n;
	}
	return 0;
}

static int copy(struct extract *x, struct uckpt_file *from, int to,
		const char *path)
{
	int64_t n;

	for (uint64_t at = 0;; at += (uint64_t)n) {
		n = uckpt_file_read(from, x->buf, CHUNK, at, &x->err);
		if (n < 0)
			return (int)n;
		if (n == 0)
			break;
		if (write_all(to, x->buf, n) < 0)
			return fail_errno(x, "cannot write", path);
		x->done.bytes += (uint64_t)n;
		if (progress_show(NULL, x->done.bytes, x->total))
			return -EINTR;
	}
	return fsync(to) < 0 ? fail_errno(x, "cannot write", path) : 0;
}

/* Write a file under its temporary name, then rename it. */
static int write_file(struct extract *x, struct uckpt_file *from,
		      const struct uckpt_attr *a, const char *path)
{
	const struct timespec mtime = { a->mtime_ns / 1000000000,
					a->mtime_ns % 1000000000 };
	const char *name;
	const int dir = open_parent(x, path, &name);
	int fd, rc;

	if (dir < 0)
		return dir;
	fd = openat(dir, x->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
		    (a->mode & 0777) | S_IWUSR);
	if (fd < 0) {
		rc = fail_errno(x, "cannot create", path);
		close(dir);
		return rc;
	}
	rc = copy(x, from, fd, path);
	if (!rc && (futimens(fd, (const struct timespec[]){ mtime, mtime }) < 0 ||
		    renameat(dir, x->tmp, dir, name) < 0))
		rc = fail_errno(x, "cannot create", path);
	if (rc)
		unlinkat(dir, x->tmp, 0);
	close(fd);
	close(dir);
	return rc;
}

static int extract_file(struct extract *x, const struct found *f)
{
	struct uckpt_file *file = NULL;
	struct uckpt_attr attr;
	int rc = uckpt_stat(x->u, f->node, &attr, &x->err)
			 ?: uckpt_file_open(x->u, f->node, &file, &x->err)
			 ?: write_file(x, file, &attr, f->path);

	uckpt_file_close(file);
	if (rc && rc != -EINTR && !*x->err.text)
		snprintf(x->err.text, sizeof(x->err.text), "%s: %s", f->path,
			 strerror(-rc));
	x->done.files += !rc;
	return rc;
}

/* Sum up the sizes, and refuse what would be overwritten before anything is written. */
static int survey(struct extract *x, const struct found_list *l)
{
	struct uckpt_attr attr;
	struct stat st;
	int rc = 0;

	for (size_t i = 0; !rc && i < l->n; i++) {
		if (fstatat(x->dir, l->v[i].path, &st, AT_SYMLINK_NOFOLLOW) ==
		    0) {
			errno = EEXIST;
			return fail_errno(x, "not written", l->v[i].path);
		}
		rc = uckpt_stat(x->u, l->v[i].node, &attr, &x->err);
		x->total += rc ? 0 : attr.size;
	}
	return rc;
}

static int open_dest(struct extract *x)
{
	if (mkdir(x->dest, 0777) < 0 && errno != EEXIST)
		return fail_errno(x, "cannot create", "");
	x->dir = open(x->dest, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return x->dir < 0 ? fail_errno(x, "cannot open", "") : 0;
}

static int extract(struct extract *x, const char *source, char *const *patterns,
		   int npatterns, struct found_list *l)
{
	int rc = uckpt_open(x->u, &source, 1, &x->err);

	for (int i = 0; !rc && i < npatterns; i++)
		rc = find_pattern(x->u, patterns[i], true, l, &x->err);
	if (rc)
		return rc;
	found_sort(l);
	rc = open_dest(x) ?: survey(x, l);
	if (!rc && progress_show(NULL, 0, x->total))
		rc = -EINTR;
	for (size_t i = 0; !rc && i < l->n; i++)
		if (l->v[i].type == S_IFREG)
			rc = extract_file(x, &l->v[i]);
		else
			cmd_say("warning: %s is left out: no file, nor a link to one",
				l->v[i].path);
	return rc;
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
	struct extract x = { .u = u, .dir = -1 };
	struct found_list l = { 0 };
	int rc;

	if (!cmd_parse(u, argc, argv, &syntax, &rc))
		return rc;
	if (argc - optind < 3)
		return cmd_usage(argv[0], "expected SOURCE, PATTERN and DIR");
	x.dest = argv[argc - 1];
	x.buf = malloc(CHUNK);
	snprintf(x.tmp, sizeof(x.tmp), ".ucckpt.tmp-%ld", (long)getpid());
	progress_catch_signals();
	rc = x.buf ? extract(&x, argv[optind], argv + optind + 1,
			     argc - optind - 2, &l)
		   : -ENOMEM;
	found_done(&l);
	free(x.buf);
	if (x.dir >= 0)
		close(x.dir);
	if (rc)
		return progress_fail(rc, x.dest,
				     "files that are complete are left there",
				     &x.err);
	progress_print(x.dest, &x.done, "");
	return CMD_OK;
}
