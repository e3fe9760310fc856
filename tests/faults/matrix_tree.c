/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of files, read through the library or through a mount, for the matrix of faults. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "ckpt/uckpt.h"
#include "tests/faults/matrix_tree.h"

#define BLOCK ((size_t)64 << 10)

static void die(const char *what, const char *path)
{
	fprintf(stderr, "%s: %s (%s)\n", path, what, strerror(errno));
	exit(1);
}

struct tree *tree_new(void)
{
	void *const m = mmap(NULL, sizeof(struct tree), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED)
		die("cannot map a tree", "mmap");
	return m;
}

const char *tree_name(const char *path)
{
	const char *const slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

bool tree_is_named(const struct tree_fault *f, const char *text)
{
	return strstr(text, tree_name(f->path)) && strstr(text, f->words);
}

static void join(char *out, size_t size, const char *dir, const char *name)
{
	if ((size_t)snprintf(out, size, "%s%s%s", dir, *dir ? "/" : "", name) >=
	    size)
		die("the path is too long", name);
}

static void copy_file(const char *from, const char *to)
{
	static const struct timespec old[2] = { { .tv_sec = 1000000000 },
						{ .tv_sec = 1000000000 } };
	const int in = open(from, O_RDONLY | O_CLOEXEC);
	const int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	char buf[BLOCK];
	ssize_t n;

	if (in < 0 || out < 0)
		die("cannot copy", from);
	while ((n = read(in, buf, sizeof(buf))) > 0)
		if (write(out, buf, (size_t)n) != n)
			die("cannot write", to);
	if (n < 0 || futimens(out, old))
		die("cannot copy", from);
	close(in);
	close(out);
}

/* Call `fn` for each entry of a directory, except ., .. and .ucfs. */
static int each_entry(const char *dir, void (*fn)(const char *name, void *arg),
		      void *arg)
{
	DIR *const d = opendir(dir);
	const struct dirent *e;

	if (!d)
		return -errno;
	while ((errno = 0, e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") &&
		    strcmp(e->d_name, ".ucfs"))
			fn(e->d_name, arg);
	closedir(d);
	return -errno;
}

struct copying {
	const char *from, *to;
};

static void copy_entry(const char *name, void *arg)
{
	const struct copying *const c = arg;
	char from[4096], to[4096];
	struct stat st;

	join(from, sizeof(from), c->from, name);
	join(to, sizeof(to), c->to, name);
	if (stat(from, &st))
		die("cannot stat", from);
	if (S_ISDIR(st.st_mode))
		tree_copy(from, to);
	else
		copy_file(from, to);
}

void tree_copy(const char *from, const char *to)
{
	if (mkdir(to, 0755) ||
	    each_entry(from, copy_entry, &(struct copying){ from, to }))
		die("cannot copy", from);
}

static void add(struct tree *t, const char *path, uint64_t size, uint64_t hash)
{
	struct tree_file *const f = &t->v[t->n];

	if (t->n == TREE_FILES || strlen(path) >= sizeof(f->path))
		die("the tree is too large", path);
	strcpy(f->path, path);
	f->size = size;
	f->hash = hash;
	t->n++;
}

/* State of reading through the library. */
struct reading {
	struct uckpt *u;
	const struct tree_fault *fault;
	struct tree *out; /* NULL: list only */
};

static void failed(struct reading *r, const char *path, int rc,
		   const struct uckpt_error *err)
{
	if (!*err->text && rc != -ENOENT &&
	    (!r->fault || strcmp(tree_name(path), tree_name(r->fault->path))))
		die("an error without a text", path);
	if (!r->out)
		return;
	r->out->failed++;
	if (*err->text && r->fault && tree_is_named(r->fault, err->text))
		r->out->named = true;
	else
		snprintf(r->out->text, sizeof(r->out->text), "%s", err->text);
}

static void read_node(struct reading *r, uint64_t node, const char *path)
{
	struct uckpt_error err = { "" };
	struct uckpt_file *f;
	XXH3_state_t *hash;
	char buf[BLOCK];
	uint64_t done = 0;
	int64_t n;
	const int rc = uckpt_file_open(r->u, node, &f, &err);

	if (rc) {
		failed(r, path, rc, &err);
		return;
	}
	hash = XXH3_createState();
	XXH3_64bits_reset(hash);
	while ((n = uckpt_file_read(f, buf, sizeof(buf), done, &err)) > 0) {
		XXH3_64bits_update(hash, buf, (size_t)n);
		done += (uint64_t)n;
	}
	if (n < 0)
		failed(r, path, (int)n, &err);
	else if (done != uckpt_file_size(f))
		die("the size is not that of its bytes", path);
	else
		add(r->out, path, done, XXH3_64bits_digest(hash));
	XXH3_freeState(hash);
	uckpt_file_close(f);
}

static void read_node_tree(struct reading *r, uint64_t node, const char *path)
{
	struct uckpt_error err = { "" };
	struct uckpt_entry e;
	struct uckpt_attr attr;
	struct uckpt_dir *d;
	char below[4096];
	uint64_t pos = 0;
	int rc = uckpt_dir_open(r->u, node, &d, &err);

	if (rc) {
		failed(r, path, rc, &err);
		return;
	}
	while ((rc = uckpt_dir_next(d, &pos, &e, &err)) > 0) {
		if (!strcmp(e.name, ".ucfs"))
			continue;
		join(below, sizeof(below), path, e.name);
		rc = uckpt_lookup(r->u, node, e.name, &attr, NULL, &err);
		if (rc)
			failed(r, below, rc, &err);
		else if (S_ISDIR(attr.mode))
			read_node_tree(r, attr.node, below);
		else if (S_ISREG(attr.mode) && r->out)
			read_node(r, attr.node, below);
	}
	if (rc)
		failed(r, path, rc, &err);
	uckpt_dir_close(d);
}

void tree_read_source(struct uckpt *u, const struct tree_fault *f,
		      struct tree *out)
{
	out->n = out->failed = 0;
	out->named = false;
	*out->text = 0;
	read_node_tree(&(struct reading){ u, f, out }, UCKPT_ROOT, "");
}

void tree_list_source(struct uckpt *u)
{
	read_node_tree(&(struct reading){ u, NULL, NULL }, UCKPT_ROOT, "");
}

/* State of reading a mount or a converted tree. */
struct walking {
	const char *root, *path; /* path below the root */
	struct tree *out;        /* NULL: list only */
};

/* Take the size of the open file: before the open, the kernel may have cached that of the undamaged
 * one. */
static void read_file(const struct walking *w, const char *full, const char *path)
{
	const int fd = open(full, O_RDONLY | O_CLOEXEC);
	XXH3_state_t *const hash = XXH3_createState();
	char buf[BLOCK];
	uint64_t done = 0;
	struct stat st = { 0 };
	ssize_t n = fd < 0 ? -1 : fstat(fd, &st);

	XXH3_64bits_reset(hash);
	while (n >= 0 && (n = read(fd, buf, sizeof(buf))) > 0) {
		XXH3_64bits_update(hash, buf, (size_t)n);
		done += (uint64_t)n;
	}
	if (n < 0)
		w->out->failed++;
	else if (done != (uint64_t)st.st_size)
		die("the size is not that of its bytes", full);
	else
		add(w->out, path, done, XXH3_64bits_digest(hash));
	XXH3_freeState(hash);
	if (fd >= 0)
		close(fd);
}

static void walk_dir(const struct walking *w);

static void walk_entry(const char *name, void *arg)
{
	const struct walking *const w = arg;
	char full[4096], path[4096];
	struct stat st;

	join(path, sizeof(path), w->path, name);
	join(full, sizeof(full), w->root, path);
	if (lstat(full, &st)) {
		if (w->out)
			w->out->failed++;
	} else if (S_ISDIR(st.st_mode)) {
		walk_dir(&(struct walking){ w->root, path, w->out });
	} else if (S_ISREG(st.st_mode) && w->out) {
		read_file(w, full, path);
	}
}

static void walk_dir(const struct walking *w)
{
	char full[4096];

	join(full, sizeof(full), w->root, w->path);
	if (each_entry(full, walk_entry, (void *)w) && w->out)
		w->out->failed++;
}

void tree_read_dir(const char *dir, struct tree *out)
{
	out->n = out->failed = 0;
	walk_dir(&(struct walking){ dir, "", out });
}

void tree_list_dir(const char *dir)
{
	walk_dir(&(struct walking){ dir, "", NULL });
}

const struct tree_file *tree_find(const struct tree *t, const char *prefix,
				  const char *path)
{
	const size_t len = strlen(prefix);

	for (unsigned i = 0; i < t->n; i++)
		if (!strncmp(t->v[i].path, prefix, len) &&
		    !strcmp(t->v[i].path + len, path))
			return &t->v[i];
	return NULL;
}
