/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reused memory.
 *
 * A reader's mapping of a file that is passed through outlives the RELEASE of
 * the handle, and would show the next contents of its pages.  A write lease
 * detects such a mapping: the kernel grants one only while nobody else has the
 * file open or mapped.  (It grants none on a memfd, hence files of a tmpfs.)
 */
#include "fs/backing/pool.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/backing/passthrough.h"
#include "fs/log/stats.h"

#define HUGE_PAGE (UINT64_C(2) << 20)

struct pool {
	uint64_t bound;
	struct passthrough *passthrough;
	struct stats *stats;
	int dir;
	pthread_mutex_t lock; /* protects the rest */
	uint64_t held;        /* bytes, by all buffers */
	uint64_t unused;      /* bytes of that, by `free` */
	struct pool_buffer *free;
	struct pool_buffer *mapped; /* still mapped when last checked */

	struct pool_buffer *creating; /* by a thread of its own, or NULL */
	pthread_cond_t created;       /* `creating` has become NULL */
	atomic_bool stop;
};

struct pool *pool_new(int dir, uint64_t bound, struct passthrough *passthrough,
		      struct stats *stats)
{
	struct pool *const p = dir < 0 ? NULL : calloc(1, sizeof(*p));

	if (!p) {
		if (dir >= 0)
			close(dir);
		return NULL;
	}
	p->bound = bound;
	p->passthrough = passthrough;
	p->stats = stats;
	p->dir = dir;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->created, NULL);
	return p;
}

static uint64_t room_for(uint64_t size)
{
	return (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

/* --- called with the lock held --------------------------------------------- */

static void pool_hold(struct pool *p, int64_t bytes)
{
	p->held += (uint64_t)bytes;
	assert(p->held <= p->bound && p->unused <= p->held);
	stats_move(p->stats, STATS_CACHE_BYTES, bytes);
}

static void pool_destroy(struct pool *p, struct pool_buffer *s)
{
	if (s->id > 0)
		passthrough_end(p->passthrough, s->id);
	if (s->p)
		munmap(s->p, s->mapped);
	if (s->fd >= 0)
		close(s->fd);
	pool_hold(p, -(int64_t)s->room);
	free(s);
}

static void pool_add_free(struct pool *p, struct pool_buffer *s)
{
	s->next = p->free;
	p->free = s;
	p->unused += s->room;
}

static struct pool_buffer *pool_remove_free(struct pool *p,
					    struct pool_buffer **at)
{
	struct pool_buffer *const s = *at;

	assert(p->unused >= s->room);
	*at = s->next;
	p->unused -= s->room;
	return s;
}

/* Does nobody else have the buffer's file open or mapped? */
static bool is_ours(const struct pool_buffer *s)
{
	if (fcntl(s->fd, F_SETLEASE, F_WRLCK) < 0)
		return false;
	fcntl(s->fd, F_SETLEASE, F_UNLCK);
	return true;
}

/* Recover buffers whose mappings have ended. */
static void pool_collect(struct pool *p)
{
	struct pool_buffer **at = &p->mapped;

	while (*at) {
		struct pool_buffer *const s = *at;

		if (is_ours(s)) {
			*at = s->next;
			pool_add_free(p, s);
		} else {
			at = &s->next;
		}
	}
}

/* Free unused buffers until `size` more bytes fit the bound, or none is left. */
static bool pool_make_room(struct pool *p, uint64_t size)
{
	while (p->held + room_for(size) > p->bound && p->free)
		pool_destroy(p, pool_remove_free(p, &p->free));
	return p->held + room_for(size) <= p->bound;
}

/* Shrink the file to `size` bytes.  Its last huge page may be split. */
static bool pool_resize(struct pool *p, struct pool_buffer *s, uint64_t size)
{
	if (s->size == size)
		return true;
	if (ftruncate(s->fd, (off_t)size) < 0)
		return false;
	s->size = size;
	pool_hold(p, (int64_t)room_for(size) - (int64_t)s->room);
	s->room = room_for(size);
	return true;
}

/* --- buffers -------------------------------------------------------------------- */

void pool_trim(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	pool_collect(p);
	while (p->free)
		pool_destroy(p, pool_remove_free(p, &p->free));
	pthread_mutex_unlock(&p->lock);
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	assert(!p->creating);
	while (p->free)
		pool_destroy(p, pool_remove_free(p, &p->free));
	while (p->mapped) { /* the pages live as long as their mappings */
		struct pool_buffer *const s = p->mapped;

		p->mapped = s->next;
		pool_destroy(p, s);
	}
	assert(p->held == 0);
	close(p->dir);
	pthread_cond_destroy(&p->created);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

bool pool_fits(const struct pool_buffer *s, uint64_t size)
{
	return s->size == size ||
	       (room_for(size) <= s->room && s->room <= 2 * room_for(size));
}

struct pool_buffer *pool_take(struct pool *p, uint64_t size)
{
	struct pool_buffer **best = NULL, *s = NULL;

	pthread_mutex_lock(&p->lock);
	pool_collect(p);
	for (struct pool_buffer **at = &p->free; *at; at = &(*at)->next)
		if (pool_fits(*at, size) &&
		    (!best || (*at)->size == size ||
		     ((*best)->size != size && (*at)->room < (*best)->room)))
			best = at;
	if (best) {
		s = pool_remove_free(p, best);
		if (!pool_resize(p, s, size)) {
			pool_destroy(p, s);
			s = NULL;
		}
	}
	pthread_mutex_unlock(&p->lock);
	return s;
}

bool pool_put(struct pool *p, struct pool_buffer *s)
{
	bool ours;

	pthread_mutex_lock(&p->lock);
	ours = is_ours(s);
	if (ours) {
		pool_add_free(p, s);
	} else {
		s->next = p->mapped;
		p->mapped = s;
	}
	pthread_mutex_unlock(&p->lock);
	return ours;
}

bool pool_has_room(struct pool *p, uint64_t size, uint64_t limit)
{
	bool has;

	pthread_mutex_lock(&p->lock);
	has = p->held - p->unused + room_for(size) <= limit;
	pthread_mutex_unlock(&p->lock);
	return has;
}

/* --- creating buffers -------------------------------------------------------- */

/* Allocate the file's memory.  By writing, since page faults would block all
 * other threads that map something. */
static bool pool_populate(const struct pool_buffer *s, const atomic_bool *stop)
{
	static const uint8_t zeros[64 << 10];
	uint64_t at = 0;
	ssize_t n = 1;

	while (at < s->size && n > 0 && !atomic_load(stop)) {
		const uint64_t left = s->size - at;

		n = pwrite(s->fd, zeros,
			   left < sizeof(zeros) ? left : sizeof(zeros),
			   (off_t)at);
		at += n > 0 ? (uint64_t)n : 0;
	}
	return at == s->size;
}

static bool pool_set_up(struct pool *p, struct pool_buffer *s)
{
	const struct sched_param none = { 0 };
	void *memory;
	bool populated;

	s->fd = openat(p->dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
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
	/* Readers need the processors more: they stream meanwhile.  The policy
	 * is restored before a lock is taken, since waiting for an idle thread
	 * could take long.  That needs CAP_SYS_NICE and is best effort. */
	sched_setscheduler(0, SCHED_IDLE, &none);
	populated = pool_populate(s, &p->stop);
	sched_setscheduler(0, SCHED_OTHER, &none);
	return populated;
}

static void *pool_create(void *arg)
{
	struct pool *const p = arg;
	struct pool_buffer *const s = p->creating;
	const bool created = pool_set_up(p, s);

	pthread_mutex_lock(&p->lock);
	if (created)
		pool_add_free(p, s);
	else
		pool_destroy(p, s);
	p->creating = NULL;
	pthread_cond_signal(&p->created);
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* Called with the lock held. */
static void pool_start(struct pool *p, struct pool_buffer *s, uint64_t size)
{
	pthread_t thread;

	*s = (struct pool_buffer){ .fd = -1,
				   .size = size,
				   .room = room_for(size) };
	pool_hold(p, (int64_t)s->room);
	p->creating = s;
	if (pthread_create(&thread, NULL, pool_create, p)) {
		p->creating = NULL;
		pool_destroy(p, s);
	} else {
		pthread_detach(thread);
	}
}

void pool_request(struct pool *p, uint64_t size)
{
	pthread_mutex_lock(&p->lock);
	if (!p->creating && !atomic_load(&p->stop) && pool_make_room(p, size)) {
		struct pool_buffer *const s = malloc(sizeof(*s));

		if (s)
			pool_start(p, s, size);
	}
	pthread_mutex_unlock(&p->lock);
}

void pool_stop(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	atomic_store(&p->stop, true);
	while (p->creating)
		pthread_cond_wait(&p->created, &p->lock);
	pthread_mutex_unlock(&p->lock);
}
