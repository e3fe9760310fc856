/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slowfs [OPTION]... DIR MOUNTPOINT: slow storage.  Shows DIR read-only, and
 * answers each request that would go to a file server after a delay, a limited
 * number of them at once.  Runs in the background until it is unmounted.
 *
 *	-d USEC   delay of a request (2000)
 *	-n MOST   limit of pending requests (64); others queue
 *	-c        let the kernel cache what was read, and read ahead by itself
 *	-t        list names with their types
 *	-l FILE   log every 50 ms: milliseconds, pending requests, MiB read so far
 *
 * The file .slowfs in the root, which is read without delay, has counters: requests
 * by kind, bytes read, and the largest number of pending requests.  The kernel
 * caches a name and its attributes for a second, as NFS does at least.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <search.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fs/ops/fuse_caps.h"

#define BELIEVED 1.0
#define COUNTERS ".slowfs"
#define TICK_US 50000

/* A requested path; inode i is at nodes[i]. */
struct node {
	char *path;
	fuse_ino_t ino;
};

/* An open file or directory. */
struct open_file {
	int fd;
	struct dirent *names; /* entries of a directory */
	size_t nnames;
};

enum kind { LOOKUP, GETATTR, LIST, OPEN, READ, KINDS };

static const char *const kind_names[KINDS] = { "lookups", "getattrs", "lists",
					       "opens", "reads" };

static useconds_t delay = 2000;
static unsigned most = 64;
static bool cached, typed;
static sem_t room;
static atomic_ullong counts[KINDS], bytes;
static atomic_uint under_way, most_under_way;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects: */
static struct node **nodes;
static size_t nnodes = FUSE_ROOT_ID;
static void *by_path;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void begin(enum kind kind)
{
	unsigned now, was = atomic_load(&most_under_way);

	atomic_fetch_add(&counts[kind], 1);
	while (sem_wait(&room) < 0)
		;
	now = atomic_fetch_add(&under_way, 1) + 1;
	while (now > was &&
	       !atomic_compare_exchange_weak(&most_under_way, &was, now))
		;
	usleep(delay);
}

static void end(void)
{
	atomic_fetch_sub(&under_way, 1);
	sem_post(&room);
}

static size_t print_counts(char *to, size_t size)
{
	size_t n = 0;

	for (int i = 0; i < KINDS; i++)
		n += (size_t)snprintf(to + n, size - n, "%s %llu\n",
				      kind_names[i], atomic_load(&counts[i]));
	n += (size_t)snprintf(to + n, size - n, "bytes %llu\nmost %u\n",
			      atomic_load(&bytes), atomic_load(&most_under_way));
	return n;
}

static void *keep_log(void *file)
{
	struct timespec t0, t;

	clock_gettime(CLOCK_MONOTONIC, &t0);
	for (;;) {
		usleep(TICK_US);
		clock_gettime(CLOCK_MONOTONIC, &t);
		fprintf(file, "%lld %u %llu\n",
			(long long)(t.tv_sec - t0.tv_sec) * 1000 +
				(t.tv_nsec - t0.tv_nsec) / 1000000,
			atomic_load(&under_way), atomic_load(&bytes) >> 20);
		fflush(file);
	}
	return NULL;
}

static int compare_nodes(const void *a, const void *b)
{
	const struct node *const x = a, *const y = b;

	return strcmp(x->path, y->path);
}

/* Takes ownership of `path`, relative to the root. */
static struct node *find_node(char *path)
{
	struct node *const n = malloc(sizeof(*n));
	struct node **at;

	if (!n || !path)
		die("memory");
	n->path = path;
	pthread_mutex_lock(&lock);
	at = tsearch(n, &by_path, compare_nodes);
	if (!at)
		die("memory");
	if (*at == n) {
		nodes = realloc(nodes, (nnodes + 1) * sizeof(struct node *));
		if (!nodes)
			die("memory");
		n->ino = nnodes;
		nodes[nnodes++] = n;
	} else {
		free(n->path);
		free(n);
	}
	pthread_mutex_unlock(&lock);
	return *at;
}

static const char *path_of(fuse_ino_t ino)
{
	const char *path;

	pthread_mutex_lock(&lock);
	path = nodes[ino]->path;
	pthread_mutex_unlock(&lock);
	return path;
}

/* Returns 0 or a positive errno. */
static int fill_entry(fuse_ino_t parent, const char *name,
		      struct fuse_entry_param *e)
{
	char *path;

	*e = (struct fuse_entry_param){ .attr_timeout = BELIEVED,
					.entry_timeout = BELIEVED };
	if (asprintf(&path, "%s/%s", path_of(parent), name) < 0)
		die("memory");
	if (lstat(path, &e->attr) < 0) {
		free(path);
		return errno;
	}
	/* A file keeps its number across mounts; a node does not. */
	e->ino = find_node(path)->ino;
	return 0;
}

/* Look up names of one directory in parallel, as NFS and others do. */
static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	(void)userdata;
	conn->want |= conn->capable & FUSE_CAP_PARALLEL_DIROPS;
	/* Limit of the kernel's read-ahead requests; its own limit is 12. */
	conn->max_background = most;
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e;
	int rc;

	begin(LOOKUP);
	rc = fill_entry(parent, name, &e);
	end();
	if (rc && !(parent == FUSE_ROOT_ID && strcmp(name, COUNTERS) == 0)) {
		fuse_reply_err(req, rc);
		return;
	}
	if (rc) { /* the counters' file, which DIR lacks */
		e.ino = find_node(strdup(COUNTERS))->ino;
		e.attr = (struct stat){ .st_ino = e.ino,
					.st_mode = S_IFREG | 0444 };
	}
	fuse_reply_entry(req, &e);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;
	int rc = 0;

	(void)fi;
	begin(GETATTR);
	if (lstat(path_of(ino), &st) < 0)
		rc = errno;
	end();
	if (rc)
		fuse_reply_err(req, rc);
	else
		fuse_reply_attr(req, &st, BELIEVED);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct open_file *const f = calloc(1, sizeof(*f));
	DIR *const dir = opendir(path_of(ino));
	const struct dirent *e;

	if (!f || !dir) {
		fuse_reply_err(req, errno);
		free(f);
		return;
	}
	while ((e = readdir(dir))) {
		f->names = realloc(f->names, (f->nnames + 1) * sizeof(*e));
		/* The buffer of readdir ends after the last entry's name. */
		memcpy(&f->names[f->nnames++], e, e->d_reclen);
	}
	closedir(dir);
	fi->fh = (uintptr_t)f;
	fuse_reply_open(req, fi);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	const struct open_file *const f = (void *)(uintptr_t)fi->fh;
	char *const buf = malloc(size);
	size_t len = 0;

	(void)ino;
	begin(LIST);
	for (size_t i = (size_t)off; buf && i < f->nnames; i++) {
		const struct stat st = {
			.st_ino = 1,
			.st_mode = typed ? DTTOIF(f->names[i].d_type) : 0
		};
		const size_t n =
			fuse_add_direntry(req, buf + len, size - len,
					  f->names[i].d_name, &st, (off_t)i + 1);

		if (n > size - len)
			break;
		len += n;
	}
	end();
	fuse_reply_buf(req, buf, len);
	free(buf);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino,
			  struct fuse_file_info *fi)
{
	struct open_file *const f = (void *)(uintptr_t)fi->fh;

	(void)ino;
	free(f->names);
	free(f);
	fuse_reply_err(req, 0);
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct open_file *const f = calloc(1, sizeof(*f));
	const char *const path = path_of(ino);

	if (!f)
		die("memory");
	f->fd = -1;
	fi->fh = (uintptr_t)f;
	fi->direct_io = !cached;
	fi->keep_cache = cached;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 11)
	fi->noflush = 1;
#endif
	if (strcmp(path, COUNTERS) == 0) {
		fi->direct_io = 1;
		fuse_reply_open(req, fi);
		return;
	}
	begin(OPEN);
	f->fd = open(path, O_RDONLY | O_CLOEXEC);
	end();
	if (f->fd < 0) {
		fuse_reply_err(req, errno);
		free(f);
		return;
	}
	fuse_reply_open(req, fi);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct open_file *const f = (void *)(uintptr_t)fi->fh;

	(void)ino;
	if (f->fd >= 0)
		close(f->fd);
	free(f);
	fuse_reply_err(req, 0);
}

static void read_counts(fuse_req_t req, size_t size, off_t off)
{
	char text[512];
	const size_t n = print_counts(text, sizeof(text));
	const size_t at = (size_t)off < n ? (size_t)off : n;

	fuse_reply_buf(req, text + at, n - at < size ? n - at : size);
}

/* FUSE requests at most 256 pages at once. */
#define REPLY_BYTES ((size_t)1 << 20)

static pthread_key_t replies; /* reply buffer of each thread */

static char *reply_buffer(size_t size)
{
	char *buf = pthread_getspecific(replies);

	if (!buf) {
		buf = malloc(REPLY_BYTES);
		pthread_setspecific(replies, buf);
	}
	if (!buf || size > REPLY_BYTES)
		die("memory of a reply");
	return buf;
}

/* A server's bytes pass through the client's memory, so splicing from the page cache would be
 * unrealistic. */
static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	const struct open_file *const f = (void *)(uintptr_t)fi->fh;
	char *buf;
	ssize_t n;

	(void)ino;
	if (f->fd < 0) {
		read_counts(req, size, off);
		return;
	}
	buf = reply_buffer(size);
	begin(READ);
	n = pread(f->fd, buf, size, off);
	end();
	if (n < 0) {
		fuse_reply_err(req, errno);
		return;
	}
	atomic_fetch_add(&bytes, (size_t)n);
	fuse_reply_buf(req, buf, (size_t)n);
}

static const struct fuse_lowlevel_ops ops = {
	.init = op_init,
	.lookup = op_lookup,
	.getattr = op_getattr,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.releasedir = op_releasedir,
	.open = op_open,
	.read = op_read,
	.release = op_release,
};

/* Run as many threads as requests may be delayed at once. */
static int serve(struct fuse_session *session)
{
#if FUSE_USE_VERSION >= 312
	struct fuse_loop_config *const config = fuse_loop_cfg_create();
	int rc;

	fuse_loop_cfg_set_max_threads(config, most + 16);
	fuse_loop_cfg_set_idle_threads(config, most + 16);
	rc = fuse_session_loop_mt(session, config);
	fuse_loop_cfg_destroy(config);
	return rc;
#else
	struct fuse_loop_config config = { .max_idle_threads = most + 16 };

	return fuse_session_loop_mt(session, &config);
#endif
}

static FILE *log_file;

static void set_options(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "d:n:ctl:")) != -1) {
		if (c == 'd')
			delay = (useconds_t)atoi(optarg);
		else if (c == 'n')
			most = (unsigned)atoi(optarg);
		else if (c == 'c')
			cached = true;
		else if (c == 't')
			typed = true;
		else if (c == 'l')
			log_file = fopen(optarg, "w");
		else
			exit(2);
	}
	if (argc - optind != 2 || most == 0) {
		fprintf(stderr, "usage: slowfs [-d USEC] [-n MOST] [-c] [-t]"
				" [-l FILE] DIR MOUNTPOINT\n");
		exit(2);
	}
}

int main(int argc, char **argv)
{
	char *words[] = { argv[0], (char *)"-oro,fsname=slowfs,subtype=slowfs",
			  NULL };
	struct fuse_args args = FUSE_ARGS_INIT(2, words);
	struct fuse_session *session;
	pthread_t thread;
	char *root;
	int rc;

	set_options(argc, argv);
	root = realpath(argv[optind], NULL);
	if (!root)
		die(argv[optind]);
	nodes = calloc(FUSE_ROOT_ID, sizeof(struct node *));
	find_node(root);
	sem_init(&room, 0, most);
	if (pthread_key_create(&replies, free))
		die("memory of replies");
	session = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	if (!session || fuse_session_mount(session, argv[optind + 1]))
		return 1;
	if (fuse_daemonize(0) || fuse_caps_patch_init(session))
		return 1;
	if (log_file)
		pthread_create(&thread, NULL, keep_log, log_file);
	rc = serve(session);
	fuse_session_unmount(session);
	fuse_session_destroy(session);
	return rc ? 1 : 0;
}
