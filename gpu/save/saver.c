/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save goes through two stages, each done by a thread of every rank and over
 * when all ranks' are: files are written, then rank 0 lets the checkpoint
 * appear.  The threads speak to nobody; ranks agree, between steps, by the
 * thread that trains.
 */
#include "gpu/save/saver.h"

#include <errno.h>
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
	struct checkpoint checkpoint;
	/* NULL: nothing is under way. */
	int (*stage)(struct checkpoint *c, struct errmsg *err);
	pthread_t thread;
	bool threaded; /* there is one: it could be started */
	atomic_bool over;
	int rc; /* of the thread, with its message */
	struct errmsg err;
	void *memory; /* of the host, for what is saved; kept */
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
		return errmsg_set(err, -ENOMEM, "out of memory");
	}
	*out = s;
	return 0;
}

void saver_free(struct saver *s)
{
	struct backend *b;

	if (!s)
		return;
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

/* --- stages ---------------------------------------------------------------- */

static void *work(void *arg)
{
	struct saver *s = arg;

	s->rc = s->stage(&s->checkpoint, &s->err);
	atomic_store(&s->over, true);
	return NULL;
}

static void start(struct saver *s,
		  int (*stage)(struct checkpoint *c, struct errmsg *err))
{
	s->stage = stage;
	atomic_store(&s->over, false);
	s->threaded = s->background &&
		      pthread_create(&s->thread, NULL, work, s) == 0;
	if (!s->threaded)
		work(s);
}

static bool all_over(struct saver *s)
{
	double busy = !atomic_load(&s->over);

	comm_max_double(s->z->comm, &busy, 1);
	return busy == 0;
}

/* All ranks' threads are at their end, or will be soon. */
static int end_stage(struct saver *s, struct errmsg *err)
{
	int rc;

	if (s->threaded)
		pthread_join(s->thread, NULL);
	rc = comm_agree(s->z->comm, s->rc, &s->err);
	if (rc) {
		*err = s->err;
	} else if (s->stage == checkpoint_write) {
		start(s, checkpoint_commit);
		return 0;
	} else {
		s->saved = s->checkpoint.o.step;
	}
	s->stage = NULL;
	checkpoint_end(&s->checkpoint);
	return rc;
}

int saver_poll(struct saver *s, bool wait, struct errmsg *err)
{
	int rc = 0;

	while (!rc && s->stage && (wait || all_over(s)))
		rc = end_stage(s, err);
	return rc;
}

/* --- what is saved --------------------------------------------------------- */

/* Memory for it; false if a rank has not enough. */
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
	comm_max_double(s->z->comm, &missing, 1);
	return missing == 0;
}

/* Without it, nothing is in the background. */
static void take_memory(struct saver *s)
{
	const size_t bytes = checkpoint_bytes(&s->checkpoint);

	if (!s->background || have_memory(s, bytes))
		return;
	s->background = false;
	if (s->checkpoint.first)
		fprintf(stderr,
			"uctrain: no %zu MiB of memory to save from: training "
			"waits for checkpoints\n",
			bytes >> 20);
}

int saver_prepare(struct saver *s, const struct save_options *o,
		  struct errmsg *err)
{
	int rc;

	if (!s->background)
		return 0;
	rc = checkpoint_sketch(&s->checkpoint, s->z, o, err);
	if (rc)
		return rc;
	take_memory(s);
	checkpoint_end(&s->checkpoint);
	return 0;
}

static int take_copy(struct saver *s, struct errmsg *err)
{
	struct backend *b = s->z->backend;
	uint8_t *to = s->memory;

	b->ops->event_record(b, s->copied, QUEUE_COMPUTE);
	b->ops->queue_wait(b, QUEUE_COPY, s->copied);
	for (unsigned i = 0; i < SAVE_FILES; i++)
		to = ptsave_detach(&s->checkpoint.files[i].pt, to);
	b->ops->event_record(b, s->copied, QUEUE_COPY);
	b->ops->event_wait(b, s->copied);
	return comm_agree(s->z->comm, b->ops->sync(b, err), err);
}

int saver_begin(struct saver *s, const struct save_options *o,
		struct errmsg *err)
{
	struct checkpoint *c = &s->checkpoint;
	int rc = saver_poll(s, true, err);

	if (!rc)
		rc = checkpoint_begin(c, s->z, o, err);
	if (rc)
		return rc;
	take_memory(s);
	if (s->background)
		rc = take_copy(s, err);
	if (rc) {
		checkpoint_end(c);
		return rc;
	}
	start(s, checkpoint_write);
	return s->background ? 0 : saver_poll(s, true, err);
}
