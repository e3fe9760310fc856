/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fakekernel.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fs/backing/hugefs.h"
#include "fs/backing/passthrough.h"

#define IDS_MAX 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int files[IDS_MAX]; /* descriptor + 1 by id; protected by lock */
static size_t begun;

static void fail(const char *why)
{
	fprintf(stderr, "fakekernel: %s\n", why);
	abort();
}

int passthrough_begin(struct passthrough *p, int fd)
{
	int id;

	if (!atomic_load(&p->on))
		return 0;
	pthread_mutex_lock(&lock);
	id = (int)++begun;
	if (id >= IDS_MAX)
		fail("too many backing ids");
	files[id] = dup(fd) + 1;
	if (files[id] <= 0)
		fail("dup");
	pthread_mutex_unlock(&lock);
	return id;
}

void passthrough_end(struct passthrough *p, int id)
{
	(void)p;
	pthread_mutex_lock(&lock);
	if (id <= 0 || id >= IDS_MAX || files[id] == 0)
		fail("the end of an unknown id");
	close(files[id] - 1);
	files[id] = 0;
	pthread_mutex_unlock(&lock);
}

int hugefs_mount(void)
{
	const char *dir = getenv("TMPDIR");
	const int shm = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return shm >= 0 ? shm
			: open(dir ? dir : "/tmp",
			       O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int fakekernel_open(int id)
{
	char path[64];
	int fd;

	pthread_mutex_lock(&lock);
	if (id <= 0 || id >= IDS_MAX || files[id] == 0)
		fail("a handle of an unknown id");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", files[id] - 1);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	pthread_mutex_unlock(&lock);
	if (fd < 0)
		fail("open");
	return fd;
}

size_t fakekernel_ids(void)
{
	size_t n = 0;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < IDS_MAX; i++)
		n += files[i] != 0;
	pthread_mutex_unlock(&lock);
	return n;
}

size_t fakekernel_begun(void)
{
	size_t n;

	pthread_mutex_lock(&lock);
	n = begun;
	pthread_mutex_unlock(&lock);
	return n;
}
