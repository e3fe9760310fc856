/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint appears when it is complete: the ranks write into a temporary
 * directory (ckpt/sys/output.h), and after all of them have synced their files,
 * rank 0 renames it and then replaces `latest`.  If a rank fails or the disk is
 * full, earlier checkpoints remain as they are.
 */
#include "gpu/save/save_impl.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"

static int unsaved(const struct save_job *c, int rc, struct errmsg *err)
{
	const struct errmsg why = *err;

	return errmsg_set(err, rc,
			  "the checkpoint of step %" PRIu64
			  " was not saved, earlier ones remain: %.400s",
			  c->o.step, why.text);
}

static int open_dir(struct save_job *c, struct errmsg *err)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s/" SAVE_TAG "%" PRIu64, c->o.dir, c->o.step) < 0)
		return errmsg_nomem(err, NULL);
	rc = output_open(&c->dir, path, OUTPUT_DIR_OVER, err);
	free(path);
	if (!rc && strlen(c->dir.tmp) >= sizeof(c->path))
		rc = errmsg_set(err, -ENAMETOOLONG, "%s: name too long",
				c->o.dir);
	if (!rc)
		strcpy(c->path, c->dir.tmp);
	return rc;
}

/* Build this rank's files: model states, a shard, and layers. */
static int make_files(struct save_job *c, const struct zero *z,
		      struct errmsg *err)
{
	const struct save s = { .zero = z, .form = &c->form, .o = &c->o };
	const unsigned layers = c->form.naming.family == NAMING_MEGATRON
					? (unsigned)z->model->nunits
					: 0;

	c->files = calloc(2 + layers, sizeof(*c->files));
	if (!c->files)
		return errmsg_nomem(err, NULL);
	c->nfiles = 2 + layers;
	save_model(&s, &c->files[0]);
	save_shard(&s, &c->files[1]);
	for (unsigned i = 0; i < layers; i++)
		save_layer(&s, i, &c->files[2 + i]);
	return 0;
}

/* Collective. */
static int make_all(struct save_job *c, const struct zero *z, struct errmsg *err)
{
	int rc = form_init(&c->form, z, &c->o.config->naming, err);

	if (!rc)
		rc = comm_agree(z->world, make_files(c, z, err), err);
	return rc;
}

static void save_start(struct save_job *c, const struct zero *z,
		       const struct save_options *o)
{
	*c = (struct save_job){ .o = *o,
				.first = z->world->rank == 0,
				.dir = { .fd = -1 } };
}

int save_job_measure(struct save_job *c, const struct zero *z,
		     const struct save_options *o, struct errmsg *err)
{
	int rc;

	save_start(c, z, o);
	rc = make_all(c, z, err);
	if (rc)
		save_job_end(c);
	return rc;
}

size_t save_job_bytes(const struct save_job *c)
{
	size_t n = 0;

	for (unsigned i = 0; i < c->nfiles; i++)
		n += ptsave_device_bytes(&c->files[i].pt);
	return n;
}

int save_job_begin(struct save_job *c, const struct zero *z,
		   const struct save_options *o, struct errmsg *err)
{
	int rc;

	save_start(c, z, o);
	rc = comm_agree(z->world, c->first ? open_dir(c, err) : 0, err);
	if (!rc) {
		comm_broadcast(z->world, c->path, sizeof(c->path), 0);
		rc = make_all(c, z, err);
	}
	if (rc) {
		save_job_end(c);
		return unsaved(c, rc, err);
	}
	return 0;
}

int save_job_write(struct save_job *c, struct errmsg *err)
{
	char path[PATH_MAX + SAVE_NAME_LEN];
	int rc = 0;

	if (c->first)
		save_remove_stale(c->o.dir);
	for (unsigned i = 0; i < c->nfiles && !rc; i++) {
		struct save_file *f = &c->files[i];

		if (!*f->name)
			continue;
		snprintf(path, sizeof(path), "%s/%s", c->path, f->name);
		rc = ptsave_write(&f->pt, f->root, path, err);
	}
	return rc ? unsaved(c, rc, err) : 0;
}

int save_job_commit(struct save_job *c, struct errmsg *err)
{
	struct errmsg kept = { "" };
	int rc;

	if (!c->first)
		return 0;
	assert(*c->path && c->dir.fd >= 0);
	/* config.json says that the names are Hugging Face's. */
	rc = c->form.naming.family == NAMING_HF ? save_config(c, err) : 0;
	if (!rc && fsync(c->dir.fd) < 0 && errno != EINVAL)
		rc = errmsg_errno(err, c->dir.tmp, "cannot sync");
	if (!rc)
		rc = output_commit(&c->dir, "latest", err);
	if (rc)
		return unsaved(c, rc, err);
	/* Failing to remove an old checkpoint does not stop the training. */
	if (save_keep_last(c->o.dir, c->o.keep_last, c->o.step, &kept))
		fprintf(stderr, "uctrain: %s\n", kept.text);
	return 0;
}

void save_job_end(struct save_job *c)
{
	for (unsigned i = 0; i < c->nfiles; i++)
		ptsave_done(&c->files[i].pt);
	free(c->files);
	c->files = NULL;
	c->nfiles = 0;
	form_done(&c->form);
	if (c->first)
		output_close(&c->dir);
}
