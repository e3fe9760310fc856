/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uckpt_convert: writes the files that a mount shows to a disk, for machines without FUSE.
 *
 * Does what DeepSpeed's ds_to_universal.py does, with differences: the output appears complete or
 * not at all (output.h), no temporary copy of the checkpoint is made, and a checkpoint without
 * universal_checkpoint_info needs no option.
 *
 * All ranks of a program may convert the same checkpoint to the same output, as they may with the
 * script.  Each fills its own directory, and the first to finish renames it to the final name; the
 * others then find the tree that they would have written.  With option `part` they share the work:
 * all fill one directory, each with its own journal, and the last to finish renames it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/context.h"
#include "ckpt/base/output.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/source.h"
#include "ckpt/commands/api.h"
#include "ckpt/commands/resume.h"
#include "ckpt/commands/settings.h"
#include "ckpt/commands/write_tree.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/tags.h"
#include "ckpt/io/roots.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"

/* Compares a directory with the files of a tree.  Links do not count as files, since their
 * targets may change. */
struct same {
	struct view *view;
	int dir;
	struct progress *progress;
	struct arena arena; /* of files and paths */
	struct file {
		const char *path; /* below `dir` */
		uint64_t node;
	} * files; /* files of equal size */
	size_t n, cap;
	size_t found, there; /* number of files and directories in the view, and in `dir` */
};

static DIR *open_dir(int dir, const char *path)
{
	const int fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d && fd >= 0)
		close(fd);
	return d;
}

static bool is_journal(const char *name)
{
	return strncmp(name, OUTPUT_JOURNAL, strlen(OUTPUT_JOURNAL)) == 0;
}

/* Remove the journals from a directory that has its final name: those of this conversion, or of one
 * that was killed before removing them. */
static void remove_journals(int fd)
{
	DIR *dir = open_dir(fd, ".");
	const struct dirent *e;

	while (dir && (e = readdir(dir)))
		if (is_journal(e->d_name))
			unlinkat(fd, e->d_name, 0);
	if (dir)
		closedir(dir);
}

/* Count the entries of a directory except journals.  Returns 0, or a negative errno. */
static int count_entries(struct same *s, const char *path)
{
	DIR *dir = open_dir(s->dir, path);
	const int rc = dir ? 0 : -errno;
	const struct dirent *e;

	while (dir && (e = readdir(dir)))
		s->there += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
			    !is_journal(e->d_name);
	if (dir)
		closedir(dir);
	return rc;
}

static int compare_entry(void *ctx, const char *path, uint64_t node, const struct view_stat *want,
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
	rc = view_file_open(s->view, s->files[i].node, &f, err);
	if (!rc)
		rc = vfile_size(f) == there.size ? vfile_compare(f, &there, s->progress, &at, err)
						 : 1;
	vfile_free(f);
	source_close(&there);
	return rc > 0 ? -EEXIST : rc;
}

/* Compare names and sizes with the tree. */
static int compare_names(struct same *s)
{
	return count_entries(s, ".")
		       ?: view_walk(s->view, compare_entry, s, NULL)
		       ?: (s->found == s->there ? 0 : -EEXIST);
}

/*
 * Compare a directory with the tree of a view, first the names and the sizes, then the bytes, of
 * which `progress` counts those that are equal.  Returns 0 if the directory has these files and no
 * others except journals, which are removed; -EINTR as progress_add; or another error.
 */
static int compare_tree(struct view *v, const char *dir, unsigned width, struct progress *progress)
{
	struct same s = { .view = v, .progress = progress };
	int rc;

	s.dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s.dir < 0)
		return -errno;
	rc = compare_names(&s) ?: parallel_for(s.n, width, compare_file, &s, NULL);
	if (!rc)
		remove_journals(s.dir);
	close(s.dir);
	arena_done(&s.arena);
	return rc;
}

struct convert {
	struct uckpt *u;
	const struct settings *s;
	const char *dest;
	struct view *view;
	struct uckpt_done done;
	size_t kept; /* files kept from an interrupted conversion */
};

/* Check that the options suit the kind of tree. */
static int check_settings(struct settings *s, struct errmsg *err)
{
	const struct view_options *p = &s->tree.view;
	const bool typed = p->dtype == DTYPE_F32 || p->dtype == DTYPE_F16 || p->dtype == DTYPE_BF16;
	const struct {
		unsigned takes;
		bool is_set;
		const char *text;
	} options[] = {
		{ TAKES_DTYPE, typed, "hf_dtype requires" },
		{ TAKES_SHARD_SIZE, p->shard_size, "hf_shard_size requires" },
		{ TAKES_DCP, p->dcp_style || p->dcp_ranks, "dcp_style and dcp_ranks require" },
		{ TAKES_ANY_STAGE, p->any_stage, "stage=any requires" },
		{ TAKES_RANKS, s->tree.nrecut, "ranks requires" },
	};
	char kinds[VIEW_LIST_MAX];

	for (size_t i = 0; i < COUNT(options); i++) {
		view_type_list(options[i].takes, "view=", kinds);
		if (options[i].is_set && !(all_views[p->type.kind]->takes & options[i].takes))
			return errmsg_set(err, -EINVAL, "%s %s", options[i].text, kinds);
	}
	return settings_validate(s, err);
}

/* The number of files to write, or compare, at once. */
static unsigned width_of(const struct convert *c)
{
	return c->s->write_threads ?: parallel_width();
}

static int open_both(const struct convert *c, enum output_kind kind, uint64_t identity,
		     struct output *out, struct resume *r, struct errmsg *err)
{
	int rc = output_open(out, c->dest, kind, err);

	if (rc)
		return rc;
	rc = resume_open(r, out->fd, OUTPUT_JOURNAL, out->taken, identity, err);
	if (rc == -EWOULDBLOCK)
		output_keep(out);
	if (rc)
		output_close(out);
	return rc;
}

static int open_output(const struct convert *c, struct output *out, struct resume *r,
		       struct errmsg *err)
{
	uint64_t identity;
	const int rc = view_identity(c->view, &identity, err)
			       ?: open_both(c, OUTPUT_DIR_RESUMED, identity, out, r, err);

	return rc == -ESTALE || rc == -EWOULDBLOCK ? open_both(c, OUTPUT_DIR, identity, out, r, err)
						   : rc;
}

/* Could the same conversion succeed later? */
static bool is_passing(int rc)
{
	return rc == -EINTR || rc == -ENOSPC || rc == -EDQUOT || rc == -EIO || rc == -ETIMEDOUT;
}

/* Sync the complete files, and keep them for the same conversion. */
static void keep_output(struct convert *c, struct output *out, struct resume *r)
{
	const struct errmsg_sink notes = context_notes(c->u);

	progress_step(c->u, "syncing", 0, 0);
	c->kept = resume_flush(r);
	if (!c->kept)
		return;
	errmsg_put(
		&notes,
		"%s keeps the complete files of %s: the same conversion goes on with them; remove it to give up",
		out->tmp, c->dest);
	output_keep(out);
}

/* Return the name of the pointer file beside the output, as beside a mount's view. */
static const char *pointer_of(const struct convert *c)
{
	return c->s->tree.view.type.kind == VIEW_UNIVERSAL ? "latest_universal" : NULL;
}

/* Write this process's files into the open directory. */
static int write_files(struct convert *c, const struct output *out, struct progress *progress,
		       struct resume *resume, struct errmsg *err)
{
	const struct write_tree_args how = {
		.shown = c->dest,
		.width = width_of(c),
		.progress = progress,
		.resume = resume,
		.share = &c->s->share,
	};

	return write_tree(c->view, out->fd, &how, &c->done, err) ?: progress_add(progress, 0);
}

static int write_output(struct convert *c, struct progress *progress, struct errmsg *err)
{
	struct resume resume;
	struct output out;
	int rc = progress_add(progress, 0) ?: open_output(c, &out, &resume, err);

	if (rc)
		return rc;
	rc = write_files(c, &out, progress, &resume, err)
		     ?: output_commit(&out, pointer_of(c), err);
	if (!out.tmp) {
		remove_journals(out.fd); /* the directory has its name, even if syncing the name
					  * failed */
	} else if (is_passing(rc)) {
		keep_output(c, &out, &resume);
	}
	resume_close(&resume);
	output_close(&out);
	return rc;
}

/* Return the name of a part's journal. */
static void journal_name(unsigned part, char name[32])
{
	snprintf(name, 32, OUTPUT_JOURNAL ".%u", part);
}

/* Count the parts that are not complete. */
static unsigned count_missing(const struct convert *c, int dir)
{
	unsigned missing = 0;
	char name[32];

	for (unsigned i = 1; i <= c->s->share.parts; i++) {
		journal_name(i, name);
		missing += !resume_is_complete(dir, name);
	}
	return missing;
}

/* Check that the directory has the files that the journals list: a machine may have failed, or
 * files may have been removed. */
static int check_parts(const struct convert *c, const struct output *out, struct progress *progress,
		       struct errmsg *err)
{
	struct same s = { .view = c->view, .dir = out->fd, .progress = progress };
	const int rc = compare_names(&s);

	arena_done(&s.arena);
	if (!rc || rc == -EINTR || rc == -ENOMEM)
		return rc;
	return errmsg_set(err, -EBADMSG,
			  "%s: does not have the files that its parts wrote: run all parts again, or remove it",
			  out->tmp);
}

/* Give the directory its name if all parts are complete.  Another process may already have done
 * so. */
static int finish_parts(const struct convert *c, struct output *out, struct progress *progress,
			struct errmsg *err)
{
	const struct errmsg_sink notes = context_notes(c->u);
	const unsigned parts = c->s->share.parts;
	struct stat mine, there;
	unsigned missing;
	int rc;

	flock(out->fd, LOCK_EX); /* without locks on the file system, one rename fails */
	if (lstat(out->tmp, &there) < 0 && errno == ENOENT)
		return 0;
	missing = count_missing(c, out->fd);
	if (missing) {
		errmsg_put(&notes,
			   "part %u of %u is complete; %u others are not yet: the last one makes %s",
			   c->s->share.part, parts, missing, c->dest);
		return 0;
	}
	rc = check_parts(c, out, progress, err);
	if (rc)
		return rc;
	rc = output_commit(out, pointer_of(c), err);
	if (rc && fstat(out->fd, &mine) == 0 && stat(c->dest, &there) == 0 &&
	    mine.st_ino == there.st_ino && mine.st_dev == there.st_dev)
		rc = 0;
	if (!rc)
		remove_journals(out->fd);
	return rc;
}

/* Write this process's part of the files into the directory that all fill. */
static int write_part(struct convert *c, struct progress *progress, struct errmsg *err)
{
	struct resume resume;
	char suffix[64], name[32];
	struct output out;
	uint64_t identity;
	int rc = view_identity(c->view, &identity, err);

	if (rc)
		return rc;
	/* Parts of another checkpoint, or of another number of parts, use other directories. */
	snprintf(suffix, sizeof(suffix), "parts-%u-%016" PRIx64, c->s->share.parts, identity);
	rc = output_open_shared(&out, c->dest, suffix, err);
	if (rc)
		return rc;
	journal_name(c->s->share.part, name);
	rc = resume_open(&resume, out.fd, name, false, identity, err);
	if (rc == -EWOULDBLOCK) {
		errmsg_set(err, rc, "%s: another process writes part %u of %u", out.tmp,
			   c->s->share.part, c->s->share.parts);
	} else if (!rc) {
		rc = write_files(c, &out, progress, &resume, err);
		if (!rc && (rc = resume_complete(&resume)))
			errmsg_set(err, rc, "%s: cannot sync: %s", c->dest, strerror(-rc));
		if (rc)
			c->kept = resume_flush(&resume);
		resume_close(&resume);
	}
	rc = rc ?: finish_parts(c, &out, progress, err);
	output_keep(&out);
	output_close(&out);
	return rc;
}

/* Write the tree, unless another process has written it. */
static int write_once(struct convert *c, struct errmsg *err)
{
	const struct errmsg_sink notes = context_notes(c->u);
	struct progress progress = { .u = c->u, .total = c->done.bytes };
	int rc = (c->s->share.parts ? write_part : write_output)(c, &progress, err), same;

	if (rc != -EEXIST && rc != -ENOTEMPTY)
		return rc;
	progress = (struct progress){ .u = c->u, .total = c->done.bytes };
	same = compare_tree(c->view, c->dest, width_of(c), &progress);
	if (same == -EINTR)
		return -EINTR;
	if (same)
		return rc;
	errmsg_put(&notes, "%s: was there, with the same files", c->dest);
	return 0;
}

static int write_view(struct convert *c, struct errmsg *err)
{
	const struct errmsg_sink warnings = context_warnings(c->u);
	int rc;

	view_checkpoint(c->view)->read_threads = c->s->read_threads;
	rc = view_prove(c->view, c->s->lenient, err)
		     ?: view_totals(c->view, &c->done.files, &c->done.bytes, err)
		     ?: write_once(c, err);
	if (!rc)
		view_warn(c->view, &warnings);
	return rc;
}

/* Weights that were not asked for are not written in place of those that were. */
static int check_model(struct uckpt *u, const char *dir, struct errmsg *err)
{
	if (!u->model || detect(u, dir, NULL) == DIR_DCP)
		return 0;
	return errmsg_set(err, -ENOTSUP,
			  "%s: is no distributed checkpoint, and option model chooses a dict of one",
			  dir);
}

/* Convert the tag that `source` means. */
static int convert(struct convert *c, const char *source, struct errmsg *err)
{
	const struct errmsg_sink notes = context_notes(c->u), warnings = context_warnings(c->u);
	enum tags_choice choice;
	struct errmsg why = { "" };
	char *dir = NULL;
	int rc = tags_choose(c->u, source, &dir, &choice, err)
			 ?: check_model(c->u, dir, err)
			 ?: view_open(c->u, dir, &c->s->tree.view, &c->view, err);

	if (!rc) {
		if (choice != TAGS_ITSELF)
			errmsg_put(&notes, "converting %s", dir);
		if (tags_ignored_latest(c->u, source, choice, &why))
			errmsg_put(&warnings, "%s", why.text);
		rc = write_view(c, err);
		view_close(c->view);
	}
	free(dir);
	return rc;
}

int uckpt_convert(struct uckpt *u, const char *const *paths, size_t n, const char *dest,
		  struct uckpt_done *done, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct settings *s = u ? settings_of(u) : NULL;
	struct convert c = { .u = u, .s = s, .dest = dest };
	char *source = NULL;
	int rc;

	if (!u || !dest)
		return api_refuse(err);
	if (!s)
		return errmsg_nomem(err, NULL);
	rc = check_settings(s, err)
		     ?: roots_unite(u, paths, n, false, &source, err)
		     ?: convert(&c, source, err);
	free(source);
	if (done)
		*done = rc ? (struct uckpt_done){ .files = c.kept } : c.done;
	return rc;
}
