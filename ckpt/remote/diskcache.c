/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file of the cache is a header and the block's bytes:
 *
 *	magic	8 bytes
 *	hash	XXH3 of the bytes (64 bits, little-endian)
 *
 * It is written under another name and renamed, so that no half of one is found.
 * Its time of change says when it was last used.
 */
#include "ckpt/remote/diskcache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"

#define MAGIC "ucfsblk1"
#define HEADER_LEN 16
#define SUFFIX ".block"
#define TMP_PREFIX "tmp."
#define NAME_LEN_MAX 80
#define TMP_AGE_S 3600 /* left behind by a process that died */
#define TOUCH_AGE_S 60 /* a time of use need not be more exact */
#define SCAN_SHARE 16  /* look at the directory after writing this part of it */

static struct {
	int fd; /* the directory, or -1 */
	uint64_t limit;
	pthread_mutex_t lock;
	uint64_t written; /* since the last look; protected by lock */
	unsigned serial;  /* of temporary files; protected by lock */
	bool looking;     /* protected by lock */
} cache = { .fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER };

bool diskcache_is_open(void)
{
	return cache.fd >= 0;
}

void diskcache_key(const char *path, const char *generation, uint64_t size,
		   char key[DISKCACHE_KEY_LEN])
{
	XXH3_state_t *const s = XXH3_createState();
	XXH128_hash_t h = { 0, 0 };

	if (s) {
		XXH3_128bits_reset(s);
		/* With their zero bytes, so that they do not run together. */
		XXH3_128bits_update(s, path, strlen(path) + 1);
		XXH3_128bits_update(s, generation, strlen(generation) + 1);
		XXH3_128bits_update(s, &size, sizeof(size));
		h = XXH3_128bits_digest(s);
		XXH3_freeState(s);
	}
	snprintf(key, DISKCACHE_KEY_LEN, "%016" PRIx64 "%016" PRIx64,
		 (uint64_t)h.high64, (uint64_t)h.low64);
}

static void block_name(const char *key, uint64_t number, char name[NAME_LEN_MAX])
{
	snprintf(name, NAME_LEN_MAX, "%s-%" PRIx64 SUFFIX, key, number);
}

/* --- room ---------------------------------------------------------------------- */

struct kept {
	char name[NAME_LEN_MAX];
	int64_t used_ns;
	uint64_t size;
};

struct look {
	struct kept *v;
	size_t n, cap;
	uint64_t bytes;
};

static int by_use(const void *a, const void *b)
{
	const struct kept *const x = a, *const y = b;

	return x->used_ns < y->used_ns ? -1 : x->used_ns > y->used_ns;
}

static bool ends_in(const char *name, const char *suffix)
{
	const size_t n = strlen(name), s = strlen(suffix);

	return n >= s && strcmp(name + n - s, suffix) == 0;
}

/* Take a name into the look; other files than ours are left alone. */
static void look_at(struct look *l, int dir, const char *name, int64_t now_s)
{
	const bool tmp = strncmp(name, TMP_PREFIX, strlen(TMP_PREFIX)) == 0;
	struct stat st;

	if ((!tmp && !ends_in(name, SUFFIX)) || strlen(name) >= NAME_LEN_MAX ||
	    fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISREG(st.st_mode))
		return;
	if (tmp) {
		if (now_s - st.st_mtim.tv_sec > TMP_AGE_S)
			unlinkat(dir, name, 0);
		return;
	}
	if (!array_reserve(&l->v, &l->cap, l->n + 1, sizeof(*l->v)))
		return;
	l->v[l->n] = (struct kept){
		.used_ns = st.st_mtim.tv_sec * INT64_C(1000000000) +
			   st.st_mtim.tv_nsec,
		.size = (uint64_t)st.st_size,
	};
	strcpy(l->v[l->n++].name, name);
	l->bytes += (uint64_t)st.st_size;
}

/* Remove the blocks used longest ago until there is room for what may be written
 * before the next look. */
static void make_room(void)
{
	const uint64_t aim = cache.limit - cache.limit / SCAN_SHARE;
	const int fd = openat(cache.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *const d = fd < 0 ? NULL : fdopendir(fd);
	const int64_t now_s = time(NULL);
	struct look l = { 0 };
	const struct dirent *e;

	while (d && (e = readdir(d)))
		look_at(&l, fd, e->d_name, now_s);
	if (l.n && l.bytes > aim)
		qsort(l.v, l.n, sizeof(*l.v), by_use);
	for (size_t i = 0; i < l.n && l.bytes > aim; i++) {
		unlinkat(cache.fd, l.v[i].name, 0);
		l.bytes -= l.v[i].size;
	}
	free(l.v);
	if (d)
		closedir(d);
	else if (fd >= 0)
		close(fd);
}

/* Count what is written; one thread at a time looks. */
static void count(size_t len)
{
	bool look;

	pthread_mutex_lock(&cache.lock);
	cache.written += len;
	look = !cache.looking && cache.written > cache.limit / SCAN_SHARE;
	if (look) {
		cache.looking = true;
		cache.written = 0;
	}
	pthread_mutex_unlock(&cache.lock);
	if (!look)
		return;
	make_room();
	pthread_mutex_lock(&cache.lock);
	cache.looking = false;
	pthread_mutex_unlock(&cache.lock);
}

/* --- opening --------------------------------------------------------------------- */

int diskcache_open(const char *dir, uint64_t limit, struct errmsg *err)
{
	struct stat st;
	int fd;

	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return errmsg_errno(err, dir, "cannot make");
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errmsg_errno(err, dir, "cannot open");
	if (fstat(fd, &st) < 0 || st.st_uid != geteuid() ||
	    st.st_mode & (S_IWGRP | S_IWOTH)) {
		close(fd);
		return errmsg_set(err, -EPERM,
				  "%s: is not used as a cache: others can write"
				  " to it",
				  dir);
	}
	diskcache_close();
	cache.fd = fd;
	cache.limit = limit;
	make_room();
	return 0;
}

void diskcache_close(void)
{
	if (cache.fd >= 0)
		close(cache.fd);
	cache.fd = -1;
	cache.written = 0;
}

/* --- blocks ----------------------------------------------------------------------- */

bool diskcache_has(const char *key, uint64_t number)
{
	char name[NAME_LEN_MAX];

	block_name(key, number, name);
	return faccessat(cache.fd, name, R_OK, 0) == 0;
}

static bool read_block(int fd, void *buf, size_t len)
{
	uint8_t header[HEADER_LEN];
	struct iovec v[] = { { header, sizeof(header) }, { buf, len } };
	struct stat st;

	return fstat(fd, &st) == 0 && (uint64_t)st.st_size == HEADER_LEN + len &&
	       preadv(fd, v, 2, 0) == (ssize_t)(HEADER_LEN + len) &&
	       memcmp(header, MAGIC, 8) == 0 &&
	       get_le64(header + 8) == XXH3_64bits(buf, len);
}

/* Note that a block is used. */
static void touch(int fd)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && time(NULL) - st.st_mtim.tv_sec > TOUCH_AGE_S)
		futimens(fd, NULL);
}

bool diskcache_get(const char *key, uint64_t number, void *buf, size_t len)
{
	char name[NAME_LEN_MAX];
	bool good;
	int fd;

	block_name(key, number, name);
	fd = openat(cache.fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return false;
	good = read_block(fd, buf, len);
	if (good)
		touch(fd);
	else
		unlinkat(cache.fd, name, 0);
	close(fd);
	return good;
}

void diskcache_put(const char *key, uint64_t number, const void *buf, size_t len)
{
	char name[NAME_LEN_MAX], tmp[NAME_LEN_MAX];
	uint8_t header[HEADER_LEN] = MAGIC;
	const struct iovec v[] = { { header, sizeof(header) },
				   { (void *)buf, len } };
	unsigned serial;
	bool good;
	int fd;

	pthread_mutex_lock(&cache.lock);
	serial = cache.serial++;
	pthread_mutex_unlock(&cache.lock);
	block_name(key, number, name);
	snprintf(tmp, sizeof(tmp), TMP_PREFIX "%ld.%u", (long)getpid(), serial);
	fd = openat(cache.fd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
		    0600);
	if (fd < 0)
		return;
	put_le64(header + 8, XXH3_64bits(buf, len));
	good = writev(fd, v, 2) == (ssize_t)(HEADER_LEN + len);
	if (close(fd) < 0 || !good ||
	    renameat(cache.fd, tmp, cache.fd, name) < 0)
		unlinkat(cache.fd, tmp, 0);
	else
		count(len);
}
