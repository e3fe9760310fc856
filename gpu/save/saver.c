/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save has two stages, each run by a thread on every rank and complete when
 * all ranks have finished it: the files are written, then rank 0 publishes the
 * checkpoint.  The threads do not communicate; the training threads of all
 * ranks agree on the results between steps.
 */
#include "gpu/save/saver.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "gpu/save/save_impl.h"

struct saver {
	struct zero *z;
	bool background;
	uint64_t saved;
	struct save_job checkpoint;
	/* NULL: no save in progress. */
	int (*stage)(struct save_job *c, struct errmsg *err);
	pthread_t thread;
	bool threaded; /* `thread` was started */
	atomic_bool over;
	int rc; /* the thread's result, with its message */
	struct errmsg err;
	void *memory; /* host memory for copies; kept between saves */
	size_t size;
	struct backend_event *copied;
};

int saver_new(struct saver **out, struct zero *z, bool background,
	      struct errmsg *err)
{
	struct saver *s = calloc(1, sizeof(*s));

	if (s) {
		s->z = z;
		s->background = background;
		s->copied = z->backend->ops->event_new(z->backend);
	}
	if (!s || !s->copied) {
		free(s);
		return errmsg_nomem(err, NULL);
	}
	*out = s;
	return 0;
}

void saver_free(struct saver *s)
{
	struct backend *b;

	if (!s)
		return;
	assert(!s->stage);
	b = s->z->backend;
	b->ops->event_free(b, s->copied);
	if (s->memory)
		b->ops->host_free(b, s->memory);
	free(s);
}

uint64_t saver_saved(const struct saver *s)
{
	return s->saved;
}

static void *saver_work(void *arg)
{
	struct saver *s = arg;

	s->rc = s->stage(&s->checkpoint, &s->err);
	atomic_store(&s->over, true);
	return NULL;
}

static void saver_start(struct saver *s,
			int (*stage)(struct save_job *c, struct errmsg *err))
{
	s->stage = stage;
	atomic_store(&s->over, false);
	s->threaded = s->background &&
		      pthread_create(&s->thread, NULL, saver_work, s) == 0;
	if (!s->threaded)
		saver_work(s);
}

static bool all_over(struct saver *s)
{
	double busy = !atomic_load(&s->over);

	comm_max_double(s->z->world, &busy, 1);
	return busy == 0;
}

/* Join this rank's thread and agree on the stage's result with all ranks. */
static int end_stage(struct saver *s, struct errmsg *err)
{
	int rc;

	assert(s->stage);
	if (s->threaded)
		pthread_join(s->thread, NULL);
	rc = comm_agree(s->z->world, s->rc, &s->err);
	if (rc) {
		*err = s->err;
	} else if (s->stage == save_job_write) {
		saver_start(s, save_job_commit);
		return 0;
	} else {
		s->saved = s->checkpoint.o.step;
	}
	s->stage = NULL;
	save_job_end(&s->checkpoint);
	return rc;
}

int saver_poll(struct saver *s, bool wait, struct errmsg *err)
{
	int rc = 0;

	while (!rc && s->stage && (wait || all_over(s)))
		rc = end_stage(s, err);
	return rc;
}

/* Allocate host memory for copies; false if it fails on some rank. */
static bool have_memory(struct saver *s, size_t bytes)
{
	struct backend *b = s->z->backend;
	double missing;

	if (bytes > s->size) {
		if (s->memory)
			b->ops->host_free(b, s->memory);
		s->memory = b->ops->host_alloc(b, bytes);
		s->size = s->memory ? bytes : 0;
	}
	missing = bytes > s->size;
	comm_max_double(s->z->world, &missing, 1);
	return missing == 0;
}

/* Without this memory, saves are made in the foreground. */
static void take_memory(struct saver *s)
{
	const size_t bytes = save_job_bytes(&s->checkpoint);

	if (!s->background || have_memory(s, bytes))
		return;
	s->background = false;
	if (s->checkpoint.first)
		fprintf(stderr,
			"uctrain: cannot allocate %zu MiB to save in the "
			"background; training waits for checkpoints\n",
			bytes >> 20);
}

int saver_prepare(struct saver *s, const struct save_options *o,
		  struct errmsg *err)
{
	int rc;

	/* A form of the files' own is in host memory already. */
	if (!s->background || o->config->naming.family != NAMING_HF)
		return 0;
	rc = save_job_measure(&s->checkpoint, s->z, o, err);
	if (rc)
		return rc;
	take_memory(s);
	save_job_end(&s->checkpoint);
	return 0;
}

static int take_copy(struct saver *s, struct errmsg *err)
{
	struct backend *b = s->z->backend;
	uint8_t *to = s->memory;

	b->ops->event_record(b, s->copied, QUEUE_COMPUTE);
	b->ops->queue_wait(b, QUEUE_COPY, s->copied);
	for (unsigned i = 0; i < s->checkpoint.nfiles; i++)
		to = ptsave_detach(&s->checkpoint.files[i].pt, to);
	assert((size_t)(to - (uint8_t *)s->memory) <= s->size);
	b->ops->event_record(b, s->copied, QUEUE_COPY);
	b->ops->event_wait(b, s->copied);
	return comm_agree(s->z->world, b->ops->sync(b, err), err);
}

int saver_begin(struct saver *s, const struct save_options *o,
		struct errmsg *err)
{
	struct save_job *c = &s->checkpoint;
	int rc = saver_poll(s, true, err);

	if (!rc)
		rc = save_job_begin(c, s->z, o, err);
	if (rc)
		return rc;
	take_memory(s);
	if (s->background)
		rc = take_copy(s, err);
	if (rc) {
		save_job_end(c);
		return rc;
	}
	saver_start(s, save_job_write);
	return s->background ? 0 : saver_poll(s, true, err);
}
