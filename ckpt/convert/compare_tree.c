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
	size_t found, there; /* files and directories of the plan, and in `dir` */
};

/* Count what is in a directory: 0, or a negative errno. */
static int count_entries(struct same *s, const char *path)
{
	const int fd = openat(s->dir, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const int rc = dir ? 0 : -errno;
	const struct dirent *e;

	while (dir && (e = readdir(dir)))
		s->there += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	if (dir)
		closedir(dir);
	else if (fd >= 0)
		close(fd);
	return rc;
}

static int compare_entry(void *ctx, const char *path, uint64_t node, const struct plan_stat *want,
			 struct errmsg *err)
{
	struct same *s = ctx;
	struct stat st;

	(void)err;
	s->found++;
	if (want->is_dir)
		return count_entries(s, path);
	if (fstatat(s->dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	path = arena_strdup(&s->arena, path);
	if (!path ||
	    !arena_reserve(&s->arena, &s->files, s->n, &s->cap, s->n + 1, sizeof(*s->files)))
		return -ENOMEM;
	s->files[s->n++] = (struct file){ path, node };
	return S_ISREG(st.st_mode) && (uint64_t)st.st_size == want->size
		       ? progress_add(s->progress, 0)
		       : -EEXIST;
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
	rc = count_entries(&s, ".")
		     ?: plan_walk(p, compare_entry, &s, NULL)
		     ?: (s.found == s.there ? 0 : -EEXIST)
		     ?: parallel_for(s.n, width, compare_file, &s, NULL);
	close(s.dir);
	arena_done(&s.arena);
	return rc;
}
