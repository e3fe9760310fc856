/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a directory has the files of a tree.  Links do not count as files: what they lead
 * to may change. */
#include "ckpt/commands/compare_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/context.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/source.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/plan.h"

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

static int compare_file(void *ctx, size_t i, struct errmsg *err)
{
	struct same *s = ctx;
	const char *path = s->files[i].path;
	const int fd = openat(s->dir, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	struct vfile *f = NULL;
	struct source there;
	uint64_t at;
	int rc = fd < 0 ? -errno : source_open_fd(&there, fd, path, err);

	if (rc)
		return rc;
	rc = plan_file_open(s->p, s->files[i].node, &f, err);
	if (!rc)
		rc = vfile_size(f) == there.size ? vfile_compare(f, &there, s->progress, &at, err)
						 : 1;
	vfile_free(f);
	source_close(&there);
	return rc > 0 ? -EEXIST : rc;
}

int compare_tree(struct plan *p, const char *dir, unsigned width, struct progress *progress)
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
