/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events.  Queued operations run only when the host waits for them.  The next one is
 * taken from a random stream whose first operation waits for no event, so that missing waits show,
 * on the device and on the host.
 *
 * An event has a mark for each time that it was recorded.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_runtime_api.h"
#include "cudaemu.h"
#include "cudaemu_impl.h"

struct mark {
	unsigned users;
	bool done;
};

/* One of these: an operation, a mark to set, a mark to wait for. */
struct queued {
	void (*run)(void *arg);
	void *arg;
	struct mark *sets, *waits_for;
	struct queued *next;
};

struct cudaemu_event {
	struct mark *mark; /* NULL: not recorded */
	double at;         /* time in milliseconds */
	bool timed, recorded;
	struct cudaemu_graph *graph; /* NULL: not recorded in a capture */
	struct nodes ends;
};

cudaStream_t cudaemu_streams;
/* Protects marks, which threads that queue nothing also query. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_running;
static uint64_t random_state;
static double now;

void cudaemu_spend(double ms)
{
	now += ms;
}

void cudaemu_seed(unsigned seed)
{
	random_state = (seed + 1) * 0x9e3779b97f4a7c15u;
}

size_t cudaemu_random(size_t n)
{
	if (!random_state) {
		const char *const seed = getenv("CUDAEMU_SEED");

		cudaemu_seed(seed ? (unsigned)atoi(seed) : 0);
	}
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (size_t)(random_state >> 11) % n;
}

static struct mark *hold(struct mark *m)
{
	pthread_mutex_lock(&lock);
	if (m)
		m->users++;
	pthread_mutex_unlock(&lock);
	return m;
}

static void drop(struct mark **at)
{
	struct mark *const m = *at;

	pthread_mutex_lock(&lock);
	*at = NULL;
	if (m && !--m->users)
		free(m);
	pthread_mutex_unlock(&lock);
}

static bool is_done(struct mark *const *at)
{
	bool done;

	pthread_mutex_lock(&lock);
	done = !*at || (*at)->done;
	pthread_mutex_unlock(&lock);
	return done;
}

static void set_done(struct mark *m)
{
	pthread_mutex_lock(&lock);
	m->done = true;
	pthread_mutex_unlock(&lock);
}

static void append(cudaStream_t s, const struct queued *what)
{
	struct queued *const q = malloc(sizeof(*q));

	if (!q)
		abort();
	*q = *what;
	if (!s->first)
		s->end = &s->first;
	*s->end = q;
	s->end = &q->next;
}

static void *copy_of(const void *p, size_t bytes)
{
	void *const copy = malloc(bytes + 1);

	if (!copy)
		abort();
	memcpy(copy, p, bytes);
	return copy;
}

void cudaemu_queue_quietly(cudaStream_t s, void (*run)(void *arg), const void *arg, size_t bytes)
{
	append(s, &(struct queued){ .run = run, .arg = copy_of(arg, bytes) });
}

void cudaemu_queue(cudaStream_t s, void (*run)(void *arg), const void *arg, size_t bytes)
{
	if (s->graph) {
		cudaemu_capture_operation(s, run, arg, bytes);
		return;
	}
	cudaemu_traffic.calls++;
	cudaemu_queue_quietly(s, run, arg, bytes);
}

static bool can_run(const struct cudaemu_stream *s)
{
	return s->first && is_done(&s->first->waits_for);
}

/* Return a random stream whose first operation can run, or NULL. */
static cudaStream_t choose(void)
{
	cudaStream_t chosen = NULL;
	size_t n = 0;

	for (cudaStream_t s = cudaemu_streams; s; s = s->next)
		if (can_run(s) && cudaemu_random(++n) == 0)
			chosen = s;
	return chosen;
}

static void run_one(void)
{
	const cudaStream_t s = choose();
	struct queued *const q = s ? s->first : NULL;

	if (!q) {
		fprintf(stderr, "cudaemu: streams wait for each other\n");
		abort();
	}
	is_running = true;
	cudaemu_reach_memory(true);
	if (q->run)
		q->run(q->arg);
	is_running = false;
	if (q->sets)
		set_done(q->sets);
	s->first = q->next;
	drop(&q->sets);
	drop(&q->waits_for);
	free(q->arg);
	free(q);
}

void cudaemu_finish_stream(cudaStream_t s)
{
	while (s->first)
		run_one();
	if (!is_running)
		cudaemu_reach_memory(false);
}

void cudaemu_finish(void)
{
	if (is_running) /* the operation waits, not the host */
		return;
	for (cudaStream_t s = cudaemu_streams; s; s = s->next)
		cudaemu_finish_stream(s);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
	(void)flags;
	*stream = calloc(1, sizeof(**stream));
	if (!*stream)
		return cudaemu_result(cudaErrorMemoryAllocation);
	(*stream)->next = cudaemu_streams;
	cudaemu_streams = *stream;
	return cudaSuccess;
}

/* Lower numbers come first. */
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
	if (priority > 0 || priority < -5)
		return cudaemu_result(cudaErrorInvalidValue);
	return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	cudaStream_t *at = &cudaemu_streams;

	cudaemu_finish_stream(stream);
	while (*at && *at != stream)
		at = &(*at)->next;
	if (*at)
		*at = stream->next;
	free(stream);
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	if (stream->graph || cudaemu_forbids("cudaStreamSynchronize"))
		return cudaemu_spoil(cudaErrorStreamCaptureUnsupported, "cudaStreamSynchronize");
	cudaemu_traffic.waits++;
	cudaemu_finish_stream(stream);
	return cudaSuccess;
}

static cudaError_t captured(const char *call)
{
	return cudaemu_spoil(cudaErrorCapturedEvent, call);
}

/* A stream that waits for a captured operation is captured, too. */
static void join(cudaStream_t stream, const struct cudaemu_event *event)
{
	stream->graph = event->graph;
	nodes_add_all(&stream->ends, &event->ends);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
	(void)flags;
	if (event->graph && event->graph != cudaemu_capture)
		return captured("cudaStreamWaitEvent");
	if (event->graph)
		join(stream, event);
	else if (stream->graph && event->recorded)
		return cudaemu_spoil(cudaErrorStreamCaptureIsolation, "cudaStreamWaitEvent");
	else if (event->mark)
		append(stream, &(struct queued){ .waits_for = hold(event->mark) });
	return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
	*event = calloc(1, sizeof(**event));
	if (*event)
		(*event)->timed = !(flags & cudaEventDisableTiming);
	return cudaemu_result(*event ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	nodes_clear(&event->ends);
	drop(&event->mark);
	free(event);
	return cudaSuccess;
}

static void set_mark(cudaEvent_t event, cudaStream_t stream)
{
	struct mark *const m = calloc(1, sizeof(*m));

	if (!m)
		abort();
	m->users = 2;
	append(stream, &(struct queued){ .sets = m });
	pthread_mutex_lock(&lock);
	event->mark = m;
	pthread_mutex_unlock(&lock);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	event->at = now;
	event->recorded = true;
	event->graph = stream->graph;
	nodes_clear(&event->ends);
	drop(&event->mark);
	if (event->graph)
		nodes_add_all(&event->ends, &stream->ends);
	else
		set_mark(event, stream);
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begun, cudaEvent_t ended)
{
	if (begun->graph || ended->graph)
		return captured("cudaEventElapsedTime");
	if (!begun->timed || !ended->timed)
		return cudaemu_result(cudaErrorInvalidValue);
	if (!is_done(&begun->mark) || !is_done(&ended->mark))
		return cudaemu_result(cudaErrorNotReady);
	*ms = (float)(ended->at - begun->at);
	return cudaSuccess;
}

/* Threads that queue nothing may call this. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
	if (event->graph)
		return captured("cudaEventQuery");
	return is_done(&event->mark) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	if (event->graph)
		return captured("cudaEventSynchronize");
	cudaemu_traffic.waits++;
	while (!is_done(&event->mark))
		run_one();
	cudaemu_reach_memory(false);
	return cudaSuccess;
}
