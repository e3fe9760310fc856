/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recycled memory.
 *
 * A reader's mapping of a file that the kernel reads by itself outlives the
 * RELEASE of its handle, and shows whatever comes into the pages.  Whether one
 * is left tells a lease for writing: it is granted only if nobody else has the
 * file open or mapped.  (A memfd never grants one; so a tmpfs.)
 *
 * The mount of the tmpfs is attached nowhere and ends with the process.
 */
#include "fs/backing/pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include "fs/backing/passthrough.h"
#include "fs/log/stats.h"

#define HUGE_PAGE (UINT64_C(2) << 20)

/* Sizes that are waited for at one time. */
#define WANTED_MAX 16

struct pool {
	uint64_t bound;
	struct passthrough *passthrough;
	struct stats *stats;
	int mount;
	pthread_mutex_t lock; /* protects the rest */
	uint64_t held;        /* by all slots */
	uint64_t idle;        /* of that, by `free' */
	struct slot *free;
	struct slot *mapped; /* by somebody, as it seemed last */

	/* For the thread that makes slots: */
	pthread_t thread;
	bool running;
	atomic_bool stop;
	pthread_cond_t wake;
	uint64_t wanted[WANTED_MAX]; /* sizes, all different */
	size_t nwanted;
};

/* A tmpfs as a mount that is nowhere; -1 without CAP_SYS_ADMIN. */
static int mount_tmpfs(void)
{
	const int fs = fsopen("tmpfs", FSOPEN_CLOEXEC);
	int mount = -1;

	if (fs < 0)
		return -1;
	/* A kernel without huge pages takes small ones, a little slower. */
	fsconfig(fs, FSCONFIG_SET_STRING, "huge", "always", 0);
	if (fsconfig(fs, FSCONFIG_SET_STRING, "size", "0", 0) == 0 &&
	    fsconfig(fs, FSCONFIG_SET_STRING, "mode", "0700", 0) == 0 &&
	    fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
		mount = fsmount(fs, FSMOUNT_CLOEXEC,
				MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
					MOUNT_ATTR_NOEXEC);
	close(fs);
	return mount;
}

struct pool *pool_new(uint64_t bound, struct passthrough *passthrough,
		      struct stats *stats)
{
	struct pool *const p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->bound = bound;
	p->passthrough = passthrough;
	p->stats = stats;
	p->mount = mount_tmpfs();
	if (p->mount < 0) {
		free(p);
		return NULL;
	}
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->wake, NULL);
	return p;
}

static uint64_t room_for(uint64_t size)
{
	return (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

/* Called with the lock held, as are those below up to pool_take. */
static void hold(struct pool *p, int64_t bytes)
{
	p->held += (uint64_t)bytes;
	stats_move(p->stats, STATS_MEMORY_BYTES, bytes);
}

static void destroy(struct pool *p, struct slot *s)
{
	if (s->id > 0)
		passthrough_end(p->passthrough, s->id);
	if (s->p)
		munmap(s->p, s->mapped);
	if (s->fd >= 0)
		close(s->fd);
	hold(p, -(int64_t)s->room);
	free(s);
}

static void push(struct slot **list, struct slot *s)
{
	s->next = *list;
	*list = s;
}

/* Is nobody but us left who has it open or mapped? */
static bool is_ours(const struct slot *s)
{
	if (fcntl(s->fd, F_SETLEASE, F_WRLCK) < 0)
		return false;
	fcntl(s->fd, F_SETLEASE, F_UNLCK);
	return true;
}

static void add_free(struct pool *p, struct slot *s)
{
	push(&p->free, s);
	p->idle += s->room;
}

/* Take back what mappings have let go. */
static void collect(struct pool *p)
{
	struct slot **at = &p->mapped;

	while (*at) {
		struct slot *const s = *at;

		if (is_ours(s)) {
			*at = s->next;
			add_free(p, s);
		} else {
			at = &s->next;
		}
	}
}

static struct slot *remove_free(struct pool *p, struct slot **at)
{
	struct slot *const s = *at;

	*at = s->next;
	p->idle -= s->room;
	return s;
}

/* Let slots go until a new one fits. */
static bool make_room(struct pool *p, uint64_t size)
{
	while (p->held + room_for(size) > p->bound && p->free)
		destroy(p, remove_free(p, &p->free));
	return p->held + room_for(size) <= p->bound;
}

void pool_trim(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	collect(p);
	while (p->free)
		destroy(p, remove_free(p, &p->free));
	pthread_mutex_unlock(&p->lock);
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	while (p->free)
		destroy(p, remove_free(p, &p->free));
	while (p->mapped) { /* the pages live as long as the mappings */
		struct slot *const s = p->mapped;

		p->mapped = s->next;
		destroy(p, s);
	}
	close(p->mount);
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

bool pool_suits(const struct slot *s, uint64_t size)
{
	return s->size == size ||
	       (room_for(size) <= s->room && s->room <= 2 * room_for(size));
}

/* Make the file `size' bytes long.  The pages behind it are let go; the last
 * one left may be split into small ones, which costs little. */
static bool resize(struct pool *p, struct slot *s, uint64_t size)
{
	if (s->size == size)
		return true;
	if (ftruncate(s->fd, (off_t)size) < 0)
		return false;
	s->size = size;
	hold(p, (int64_t)room_for(size) - (int64_t)s->room);
	s->room = room_for(size);
	return true;
}

struct slot *pool_take(struct pool *p, uint64_t size)
{
	struct slot **best = NULL, *s = NULL;

	pthread_mutex_lock(&p->lock);
	collect(p);
	for (struct slot **at = &p->free; *at; at = &(*at)->next)
		if (pool_suits(*at, size) &&
		    (!best || (*at)->size == size ||
		     ((*best)->size != size && (*at)->room < (*best)->room)))
			best = at;
	if (best) {
		s = remove_free(p, best);
		if (!resize(p, s, size)) {
			destroy(p, s);
			s = NULL;
		}
	}
	pthread_mutex_unlock(&p->lock);
	return s;
}

bool pool_has_room(struct pool *p, uint64_t size)
{
	pthread_mutex_lock(&p->lock);

	const bool has = p->held - p->idle + room_for(size) <= p->bound;

	pthread_mutex_unlock(&p->lock);
	return has;
}

struct population {
	const struct slot *slot;
	const atomic_bool *stop;
	bool done;
};

/* Give the file its memory.  By writing, since a fault of ours would hold up
 * all who map something meanwhile. */
static void *populate(void *arg)
{
	static const uint8_t zeros[64 << 10];
	struct population *const x = arg;
	const uint64_t size = x->slot->size;
	uint64_t at = 0;
	ssize_t n = 1;

	/* Readers need the processors more: they stream meanwhile. */
	sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){ 0 });
	while (at < size && n > 0 && !atomic_load(x->stop)) {
		const uint64_t left = size - at;

		n = pwrite(x->slot->fd, zeros,
			   left < sizeof(zeros) ? left : sizeof(zeros),
			   (off_t)at);
		at += n > 0 ? (uint64_t)n : 0;
	}
	x->done = at == size;
	return NULL;
}

/* In a thread of its own, which holds no lock: nobody can have to wait for the
 * little time that it gets. */
static bool populate_idly(const struct slot *s, const atomic_bool *stop)
{
	struct population x = { .slot = s, .stop = stop };
	pthread_t thread;

	if (pthread_create(&thread, NULL, populate, &x))
		return false;
	pthread_join(thread, NULL);
	return x.done;
}

static bool set_up(struct pool *p, struct slot *s)
{
	void *memory;

	s->fd = openat(p->mount, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (s->fd < 0 || ftruncate(s->fd, (off_t)s->size) < 0)
		return false;
	s->id = passthrough_begin(p->passthrough, s->fd);
	if (s->id == 0)
		return false;
	memory = mmap(NULL, s->room, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd,
		      0);
	if (memory == MAP_FAILED)
		return false;
	s->p = memory;
	s->mapped = s->room;
	return populate_idly(s, &p->stop);
}

/* Called with the lock held, which is let go meanwhile. */
static void make(struct pool *p, uint64_t size)
{
	struct slot *const s = calloc(1, sizeof(*s));
	bool made;

	if (!s || !make_room(p, size)) {
		free(s);
		return;
	}
	*s = (struct slot){ .fd = -1, .size = size, .room = room_for(size) };
	hold(p, (int64_t)s->room);
	pthread_mutex_unlock(&p->lock);
	made = set_up(p, s);
	pthread_mutex_lock(&p->lock);
	if (made)
		add_free(p, s);
	else
		destroy(p, s);
}

static void *run(void *arg)
{
	struct pool *const p = arg;

	pthread_mutex_lock(&p->lock);
	while (!atomic_load(&p->stop)) {
		if (p->nwanted == 0) {
			pthread_cond_wait(&p->wake, &p->lock);
			continue;
		}
		make(p, p->wanted[0]);
		p->nwanted--;
		memmove(p->wanted, p->wanted + 1,
			p->nwanted * sizeof(*p->wanted));
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* Called with the lock held. */
static bool is_wanted(const struct pool *p, uint64_t size)
{
	for (size_t i = 0; i < p->nwanted; i++)
		if (p->wanted[i] == size)
			return true;
	return false;
}

void pool_want(struct pool *p, uint64_t size)
{
	pthread_mutex_lock(&p->lock);
	if (!p->running && !atomic_load(&p->stop))
		p->running = pthread_create(&p->thread, NULL, run, p) == 0;
	if (p->nwanted < WANTED_MAX && !is_wanted(p, size)) {
		p->wanted[p->nwanted++] = size;
		pthread_cond_signal(&p->wake);
	}
	pthread_mutex_unlock(&p->lock);
}

void pool_stop(struct pool *p)
{
	pthread_mutex_lock(&p->lock);

	const bool running = p->running;

	p->running = false;
	atomic_store(&p->stop, true);
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
	if (running)
		pthread_join(p->thread, NULL);
}

bool pool_put(struct pool *p, struct slot *s)
{
	bool ours;

	pthread_mutex_lock(&p->lock);
	ours = is_ours(s);
	if (ours)
		add_free(p, s);
	else
		push(&p->mapped, s);
	pthread_mutex_unlock(&p->lock);
	return ours;
}
