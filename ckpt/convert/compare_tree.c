/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a directory has the files of a tree.  Links do not count as files: what they lead
 * to may change. */
#include "ckpt/convert/compare_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/context.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/vfile/vfile.h"

/* Bytes compared at a time. */
#define CHUNK ((size_t)1 << 20)

struct same {
	struct plan *p;
	int dir;
	struct progress *progress;
	struct arena arena; /* of files and paths */
	struct file {
		const char *path; /* below `dir` */
		uint64_t node;
	} * files; /* whose sizes are equal */
	size_t n, cap;
};

/* Count what is in a directory: 0, or a negative errno. */
static int count_entries(const struct same *s, const char *path, size_t *n)
{
	const int fd = openat(s->dir, *path ? path : ".",
			      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const int rc = dir ? 0 : -errno;
	const struct dirent *e;

	*n = 0;
	while (dir && (e = readdir(dir)))
		*n += strcmp(e->d_name, ".") != 0 &&
		      strcmp(e->d_name, "..") != 0;
	if (dir)
		closedir(dir);
	else if (fd >= 0)
		close(fd);
	return rc;
}

/* Recursive: the tree is three levels deep. */
static int compare_dir(struct same *s, uint64_t node, const char *path);

static int compare_entry(struct same *s, const struct plan_entry *e,
			 const char *dir)
{
	const size_t max = strlen(dir) + strlen(e->name) + 2;
	char *path = arena_alloc(&s->arena, max);
	struct plan_stat want;
	struct stat st;
	int rc;

	if (!path || !arena_reserve(&s->arena, &s->files, s->n, &s->cap,
				    s->n + 1, sizeof(*s->files)))
		return -ENOMEM;
	snprintf(path, max, "%s%s%s", dir, *dir ? "/" : "", e->name);
	rc = plan_stat(s->p, e->node, &want, NULL);
	if (rc || want.is_dir)
		return rc ?: compare_dir(s, e->node, path);
	if (fstatat(s->dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	s->files[s->n++] = (struct file){ path, e->node };
	return S_ISREG(st.st_mode) && (uint64_t)st.st_size == want.size
		       ? 0
		       : -EEXIST;
}

static int compare_dir(struct same *s, uint64_t node, const char *path)
{
	struct plan_entry e;
	size_t n = 0, there;
	uint64_t pos = 0;
	int rc = count_entries(s, path, &there);

	while (!rc && (rc = plan_next(s->p, node, &pos, &e, NULL)) == 1) {
		rc = ++n > there ? -EEXIST : compare_entry(s, &e, path);
		rc = rc ?: progress_add(s->progress, 0);
	}
	return rc ?: n == there ? 0 : -EEXIST;
}

/* Compare the bytes of an open file. */
static int compare_bytes(const struct same *s, struct vfile *f, int fd)
{
	const uint64_t size = vfile_size(f);
	const size_t len = size < CHUNK ? (size_t)size + 1 : CHUNK;
	uint8_t *want = malloc(2 * len), *have = want + len;
	int rc = want ? 0 : -ENOMEM;

	for (uint64_t off = 0; !rc && off < size;) {
		const int64_t n = vfile_read(f, want, len, off, NULL);

		if (n <= 0)
			rc = n ? (int)n : -EIO;
		else if (pread(fd, have, (size_t)n, (off_t)off) != n ||
			 memcmp(want, have, (size_t)n) != 0)
			rc = -EEXIST;
		else
			rc = progress_add(s->progress, (uint64_t)n);
		off += rc ? 0 : (uint64_t)n;
	}
	free(want);
	return rc;
}

static int compare_file(void *ctx, size_t i, struct errmsg *err)
{
	struct same *s = ctx;
	const int fd = openat(s->dir, s->files[i].path,
			      O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	struct vfile *f = NULL;
	int rc;

	if (fd < 0)
		return -errno;
	rc = plan_file_open(s->p, s->files[i].node, &f, err);
	if (!rc)
		rc = compare_bytes(s, f, fd);
	vfile_free(f);
	close(fd);
	return rc;
}

int compare_tree(struct plan *p, const char *dir, unsigned width,
		 struct progress *progress)
{
	struct same s = { .p = p, .progress = progress };
	int rc;

	s.dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s.dir < 0)
		return -errno;
	rc = compare_dir(&s, PLAN_ROOT, "")
		     ?: parallel_for(s.n, width, compare_file, &s, NULL);
	close(s.dir);
	arena_done(&s.arena);
	return rc;
}
