/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint appears when it is complete: the ranks write into a temporary directory
 * (ckpt/base/output.h), and after all of them have synced their files, rank 0 renames it and then
 * replaces `latest`.  If a rank fails or the disk is full, earlier checkpoints remain as they
 * are.
 *
 * So a save has two stages, each run by a thread on every rank and complete when all ranks have
 * finished it.  The threads do not communicate; the training threads of all ranks agree on the
 * results between steps.
 */
#include "gpu/save/saver.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"
#include "gpu/save/save_impl.h"

struct saver {
	struct zero *z;
	bool background, first; /* `first`: this is rank 0 */
	uint64_t saved;
	void *memory; /* host memory for copies; kept between saves */
	size_t size;
	struct backend_event *copied;

	/* The save in progress: */
	struct save_options o;
	struct state_order order;
	struct save_file *files;
	unsigned nfiles;
	struct output dir;   /* rank 0 only */
	char path[PATH_MAX]; /* of the temporary directory */
	/* NULL: no save in progress. */
	int (*stage)(struct saver *s, struct errmsg *err);
	pthread_t thread;
	bool threaded; /* `thread` was started */
	atomic_bool over;
	int rc; /* the thread's result, with its message */
	struct errmsg err;
};

int saver_new(struct saver **out, struct zero *z, bool background, struct errmsg *err)
{
	struct saver *s = calloc(1, sizeof(*s));

	if (s) {
		s->z = z;
		s->background = background;
		s->first = z->world->rank == 0;
		s->dir.fd = -1;
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

/* Build this rank's files: model states, a shard, and layers. */
static int build_files(struct saver *s, struct errmsg *err)
{
	const unsigned layers =
		s->order.naming.family == NAMING_MEGATRON ? (unsigned)s->z->model->nunits : 0;

	s->files = calloc(2 + layers, sizeof(*s->files));
	if (!s->files)
		return errmsg_nomem(err, NULL);
	s->nfiles = 2 + layers;
	for (unsigned i = 0; i < s->nfiles; i++) {
		struct save_file *f = &s->files[i];
		const struct save save = { .zero = s->z,
					   .order = &s->order,
					   .o = &s->o,
					   .pt = &f->pt,
					   .a = &f->pt.layout.a };

		if (i == 0)
			save_model(&save, f);
		else if (i == 1)
			save_shard(&save, f);
		else
			save_layer(&save, i - 2, f);
	}
	return 0;
}

/* Build the files, which refer to device memory.  Collective. */
static int saver_build(struct saver *s, const struct save_options *o, struct errmsg *err)
{
	int rc;

	s->o = *o;
	rc = state_order_init(&s->order, s->z, &o->config->naming, err);
	return rc ? rc : comm_agree(s->z->world, build_files(s, err), err);
}

/* End the save.  No rank may still be writing. */
static void saver_end(struct saver *s)
{
	for (unsigned i = 0; i < s->nfiles; i++)
		ptsave_done(&s->files[i].pt);
	free(s->files);
	s->files = NULL;
	s->nfiles = 0;
	state_order_done(&s->order);
	if (s->first)
		output_close(&s->dir);
	s->stage = NULL;
}

static int unsaved(const struct saver *s, int rc, struct errmsg *err)
{
	const struct errmsg why = *err;

	return errmsg_set(err, rc,
			  "the checkpoint of step %" PRIu64
			  " was not saved, earlier ones remain: %.400s",
			  s->o.step, why.text);
}

/* The first stage: write and sync this rank's files. */
static int write_files(struct saver *s, struct errmsg *err)
{
	char path[PATH_MAX + NAME_MAX + 2];
	int rc = 0;

	if (s->first)
		save_remove_stale(s->o.dir);
	for (unsigned i = 0; i < s->nfiles && !rc; i++) {
		struct save_file *f = &s->files[i];

		if (!*f->name)
			continue;
		snprintf(path, sizeof(path), "%s/%s", s->path, f->name);
		rc = ptsave_write(&f->pt, f->root, path, err);
	}
	return rc;
}

/* The second stage: rank 0 publishes the checkpoint and removes those beyond keep_last. */
static int publish(struct saver *s, struct errmsg *err)
{
	struct errmsg kept = { "" };
	int rc = 0;

	if (!s->first)
		return 0;
	assert(*s->path && s->dir.fd >= 0);
	/* config.json implies Hugging Face's names. */
	if (s->order.naming.family == NAMING_HF)
		rc = save_config(s->path, &s->o.config->model, err);
	if (!rc && fsync(s->dir.fd) < 0 && errno != EINVAL)
		rc = errmsg_errno(err, s->dir.tmp, "cannot sync");
	if (!rc)
		rc = output_commit(&s->dir, "latest", err);
	/* Failing to remove an old checkpoint does not stop training. */
	if (!rc && save_keep_last(s->o.dir, s->o.keep_last, s->o.step, &kept))
		fprintf(stderr, "uctrain: %s\n", kept.text);
	return rc;
}

static void *saver_work(void *arg)
{
	struct saver *s = arg;

	s->rc = s->stage(s, &s->err);
	atomic_store(&s->over, true);
	return NULL;
}

static void saver_start(struct saver *s, int (*stage)(struct saver *s, struct errmsg *err))
{
	s->stage = stage;
	atomic_store(&s->over, false);
	s->threaded = s->background && pthread_create(&s->thread, NULL, saver_work, s) == 0;
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
	if (!rc && s->stage == write_files) {
		saver_start(s, publish);
		return 0;
	}
	if (rc) {
		*err = s->err;
		unsaved(s, rc, err);
	} else {
		s->saved = s->o.step;
	}
	saver_end(s);
	return rc;
}

int saver_poll(struct saver *s, bool wait, struct errmsg *err)
{
	int rc = 0;

	while (!rc && s->stage && (wait || all_over(s)))
		rc = end_stage(s, err);
	return rc;
}

/* Allocate host memory for copies; false if it fails on any rank. */
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

/* Without this memory, saves run in the foreground. */
static void take_memory(struct saver *s)
{
	size_t bytes = 0;

	for (unsigned i = 0; i < s->nfiles; i++)
		bytes += ptsave_device_bytes(&s->files[i].pt);
	if (!s->background || have_memory(s, bytes))
		return;
	s->background = false;
	if (s->first)
		fprintf(stderr,
			"uctrain: cannot allocate %zu MiB to save in the background; training waits for checkpoints\n",
			bytes >> 20);
}

int saver_prepare(struct saver *s, const struct save_options *o, struct errmsg *err)
{
	int rc;

	/* A form that differs from the device's is in host memory already. */
	if (!s->background || o->config->naming.family != NAMING_HF)
		return 0;
	rc = saver_build(s, o, err);
	if (!rc)
		take_memory(s);
	saver_end(s);
	return rc;
}

static int take_copy(struct saver *s, struct errmsg *err)
{
	struct backend *b = s->z->backend;
	uint8_t *to = s->memory;

	b->ops->event_record(b, s->copied, QUEUE_COMPUTE);
	b->ops->queue_wait(b, QUEUE_COPY, s->copied);
	for (unsigned i = 0; i < s->nfiles; i++)
		to = ptsave_detach(&s->files[i].pt, to);
	assert((size_t)(to - (uint8_t *)s->memory) <= s->size);
	b->ops->event_record(b, s->copied, QUEUE_COPY);
	b->ops->event_wait(b, s->copied);
	return comm_agree(s->z->world, b->ops->sync(b, err), err);
}

/* Create the temporary directory.  Collective. */
static int open_dir(struct saver *s, const struct save_options *o, struct errmsg *err)
{
	char *path = NULL;
	int rc = 0;

	if (s->first) {
		if (asprintf(&path, "%s/" SAVE_TAG "%" PRIu64, o->dir, o->step) < 0)
			rc = errmsg_nomem(err, NULL);
		else
			rc = output_open(&s->dir, path, OUTPUT_DIR_OVER, err);
		free(path);
		if (!rc &&
		    snprintf(s->path, sizeof(s->path), "%s", s->dir.tmp) >= (int)sizeof(s->path))
			rc = errmsg_set(err, -ENAMETOOLONG, "%s: name too long", o->dir);
	}
	rc = comm_agree(s->z->world, rc, err);
	if (!rc)
		comm_broadcast(s->z->world, s->path, sizeof(s->path), 0);
	return rc;
}

int saver_begin(struct saver *s, const struct save_options *o, struct errmsg *err)
{
	int rc = saver_poll(s, true, err);

	if (rc)
		return rc;
	rc = open_dir(s, o, err) ?: saver_build(s, o, err);
	if (!rc)
		take_memory(s);
	if (!rc && s->background)
		rc = take_copy(s, err);
	if (rc) {
		s->o = *o;
		saver_end(s);
		return unsaved(s, rc, err);
	}
	saver_start(s, write_files);
	return s->background ? 0 : saver_poll(s, true, err);
}
