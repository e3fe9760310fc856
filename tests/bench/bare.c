/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bare DIR MOUNTPOINT: a minimal FUSE server, as a bound for any other.  It shows an existing tree
 * with names and attributes held in memory, whose contents the kernel itself reads (passthrough);
 * it parses, computes and sums nothing.  It measures the cost of the requests, so a bar that it
 * misses, ucfs misses, too.  Runs in the background until it is unmounted.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/ops/fuse_caps.h"
#include "fs/ops/passthrough.h"

#define FOR_EVER 1e6

/* Inode i is node i - 1; a directory's entries are adjacent and sorted by name. */
struct node {
	char *path; /* relative to the root */
	const char *name;
	struct stat st;
	size_t first, n;
};

/* An open directory. */
struct handle {
	int fd, id;
};

static struct node *nodes;
static size_t nnodes, cap;
static struct passthrough kernel;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void add_node(const char *dir, const char *name)
{
	struct node *n;

	if (nnodes == cap) {
		cap = cap ? cap * 2 : 1024;
		nodes = realloc(nodes, cap * sizeof(*nodes));
		if (!nodes)
			die("memory");
	}
	n = &nodes[nnodes++];
	*n = (struct node){ 0 };
	if (asprintf(&n->path, "%s%s%s", dir, *name ? "/" : "", name) < 0)
		die("memory");
	n->name = n->path + strlen(n->path) - strlen(name);
	if (stat(n->path, &n->st) < 0)
		die(n->path);
	n->st.st_ino = nnodes;
}

static int by_name(const void *a, const void *b)
{
	const struct node *const x = a, *const y = b;

	return strcmp(x->name, y->name);
}

static void add_entries(size_t at)
{
	const char *const path = nodes[at].path;
	DIR *const dir = opendir(path);
	const struct dirent *e;

	if (!dir)
		die(path);
	nodes[at].first = nnodes;
	while ((e = readdir(dir)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			add_node(path, e->d_name);
	closedir(dir);
	nodes[at].n = nnodes - nodes[at].first;
	qsort(&nodes[nodes[at].first], nodes[at].n, sizeof(*nodes), by_name);
	for (size_t i = nodes[at].first; i < nnodes; i++)
		nodes[i].st.st_ino = i + 1;
}

static void load(const char *root)
{
	add_node(root, "");
	for (size_t i = 0; i < nnodes; i++)
		if (S_ISDIR(nodes[i].st.st_mode))
			add_entries(i);
}

static struct fuse_entry_param entry_of(const struct node *n)
{
	return (struct fuse_entry_param){ .ino = n->st.st_ino,
					  .generation = 1,
					  .attr = n->st,
					  .attr_timeout = FOR_EVER,
					  .entry_timeout = FOR_EVER };
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	(void)userdata;
	if (!fuse_caps_init(conn))
		exit(1);
	kernel.on = true;
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	const struct node *const dir = &nodes[parent - 1];
	const struct node key = { .name = name };
	const struct node *const n = bsearch(&key, &nodes[dir->first], dir->n,
					     sizeof(*nodes), by_name);

	if (n) {
		const struct fuse_entry_param e = entry_of(n);

		fuse_reply_entry(req, &e);
	} else {
		fuse_reply_err(req, ENOENT);
	}
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)fi;
	fuse_reply_attr(req, &nodes[ino - 1].st, FOR_EVER);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	(void)fi;
	fuse_reply_err(req, ENOSYS); /* no opendir: the kernel caches listings */
}

static void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size,
			   off_t off, struct fuse_file_info *fi)
{
	const struct node *const dir = &nodes[ino - 1];
	static char buf[1 << 20];
	size_t len = 0;

	(void)fi;
	if (size > sizeof(buf))
		size = sizeof(buf);
	for (size_t i = (size_t)off; i < dir->n; i++) {
		const struct node *const n = &nodes[dir->first + i];
		const struct fuse_entry_param e = entry_of(n);
		const size_t need = fuse_add_direntry_plus(
			req, buf + len, size - len, n->name, &e, (off_t)i + 1);

		if (need > size - len)
			break;
		len += need;
	}
	fuse_reply_buf(req, buf, len);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct handle *const h = malloc(sizeof(*h));

	(void)fi;
	if (!h) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	h->fd = open(nodes[ino - 1].path, O_RDONLY | O_CLOEXEC);
	h->id = passthrough_begin(&kernel, h->fd);
	if (!h->id || passthrough_reply(req, (uintptr_t)h, h->id) < 0)
		exit(1);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct handle *const h = (struct handle *)(uintptr_t)fi->fh;

	(void)ino;
	fuse_reply_err(req, 0);
	passthrough_end(&kernel, h->id);
	close(h->fd);
	free(h);
}

static const struct fuse_lowlevel_ops ops = {
	.init = op_init,
	.lookup = op_lookup,
	.getattr = op_getattr,
	.opendir = op_opendir,
	.readdirplus = op_readdirplus,
	.open = op_open,
	.release = op_release,
};

static int serve(struct fuse_session *session)
{
#if FUSE_USE_VERSION >= 312
	struct fuse_loop_config *const config = fuse_loop_cfg_create();
	const int rc = fuse_session_loop_mt(session, config);

	fuse_loop_cfg_destroy(config);
	return rc;
#else
	struct fuse_loop_config config = { .max_idle_threads = 10 };

	return fuse_session_loop_mt(session, &config);
#endif
}

int main(int argc, char **argv)
{
	char *words[] = { argv[0], (char *)"-oro,fsname=bare", NULL };
	struct fuse_args args = FUSE_ARGS_INIT(2, words);
	struct fuse_session *session;
	int rc;

	if (argc != 3) {
		fprintf(stderr, "usage: bare DIR MOUNTPOINT\n");
		return 2;
	}
	load(argv[1]);
	session = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	if (!session || fuse_session_mount(session, argv[2]))
		return 1;
	kernel.fuse_fd = fuse_session_fd(session);
	if (fuse_daemonize(0) || fuse_caps_patch_init(session))
		return 1;
	rc = serve(session);
	fuse_session_unmount(session);
	fuse_session_destroy(session);
	return rc ? 1 : 0;
}
