/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/dcp/dcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dcp/blobs.h"
#include "ckpt/io/io.h"
#include "ckpt/sys/clock.h"

/* Checkpoints that stay open without a user: that of a run that is being looked at. */
#define KEPT_MAX 2u

struct dcp {
	struct uckpt *u;
	char *dir;
	struct attrs attrs; /* of the metadata */
	struct fileid id;   /* of the metadata */
	bool is_pair;
	struct dcp_metadata metadata;
	struct dcp_megatron megatron;
	struct dcp_blobs blobs;
	struct dcp_model model;
	struct dcp_zerofile files[DCP_ZEROFILE_KINDS];
	pthread_mutex_t loading; /* held while it is loaded */
	int rc; /* why it cannot be read, if not 0; nothing is open then */
	struct errmsg why;
	/* Protected by the context's lock: */
	unsigned users;
	struct dcp *next;
	bool loaded; /* or refused */
	uint64_t good_until; /* clock_ns() until which its files are not looked at */
};

/* Looking at all files, or finding that they cannot be read, takes at most this part of the
 * time; they are looked at every 10 s at least. */
#define CHECK_PART 20u
#define CHECK_NS_MAX (UINT64_C(10) * 1000000000)

static const char *const pair[] = { DCP_PAIR_MODEL "/" DCP_METADATA,
				    DCP_PAIR_OPTIMIZER "/" DCP_METADATA };

/* Look at a file below the first `n` bytes of a directory's path. */
static int look(struct uckpt *u, const char *dir, size_t n, const char *name,
		struct attrs *a)
{
	char *path;
	int rc;

	if (asprintf(&path, "%.*s/%s", (int)n, dir, name) < 0)
		return -ENOMEM;
	rc = io_stat(u, path, 0, a, NULL, NULL);
	free(path);
	return rc;
}

/* Find the metadata of the checkpoint in a directory, or of the first of a pair. */
static int find_checkpoint(struct uckpt *u, const char *dir, struct attrs *a,
			   bool *is_pair)
{
	const size_t n = strlen(dir);

	*is_pair = look(u, dir, n, DCP_METADATA, a) != 0;
	return *is_pair ? look(u, dir, n, pair[0], a) : 0;
}

bool dcp_is_one(struct uckpt *u, const char *dir)
{
	struct attrs a;
	bool is_pair;

	return find_checkpoint(u, dir, &a, &is_pair) == 0;
}

static void dcp_unload(struct dcp *d)
{
	for (int k = 0; k < DCP_ZEROFILE_KINDS; k++)
		dcp_zerofile_done(&d->files[k]);
	dcp_model_done(&d->model);
	dcp_blobs_done(&d->blobs);
	dcp_metadata_done(&d->metadata);
}

static void dcp_free(struct dcp *d)
{
	if (!d)
		return;
	dcp_unload(d);
	pthread_mutex_destroy(&d->loading);
	free(d->dir);
	free(d);
}

static struct dcp *dcp_new(const struct dcp *found, const char *dir)
{
	struct dcp *const d = malloc(sizeof(*d));

	if (!d)
		return NULL;
	*d = *found;
	pthread_mutex_init(&d->loading, NULL);
	d->dir = strdup(dir);
	if (d->dir)
		return d;
	dcp_free(d);
	return NULL;
}

/* Read the metadata of the directory, or of both of a pair, which may have been saved
 * without the optimizer. */
static int read_metadata(struct dcp *d, struct errmsg *err)
{
	struct attrs a = d->attrs;
	int rc = 0;

	if (!d->is_pair)
		return dcp_metadata_add(&d->metadata, d->u, d->dir, err);
	for (size_t i = 0; !rc && i < COUNT(pair); i++) {
		char *path;

		if (look(d->u, d->dir, strlen(d->dir), pair[i], &a) && i)
			break;
		permissions_restrict(&d->attrs.readable_by, &a.readable_by);
		if (asprintf(&path, "%s/%.*s", d->dir,
			     (int)(strlen(pair[i]) - strlen("/" DCP_METADATA)),
			     pair[i]) < 0)
			return errmsg_nomem(err, d->dir);
		rc = dcp_metadata_add(&d->metadata, d->u, path, err);
		free(path);
	}
	return rc;
}

static int load_torch(struct dcp *d, struct errmsg *err)
{
	int rc = read_metadata(d, err) ?:
		 dcp_megatron_find(&d->megatron, &d->metadata, d->u, d->dir, err) ?:
		 dcp_blobs_init(&d->blobs, d->u, d->dir, &d->metadata,
				&d->attrs.readable_by, err) ?:
		 dcp_model_find(&d->model, &d->metadata, &d->megatron, &d->blobs,
				d->dir, err);

	for (enum dcp_zerofile_kind k = 0; !rc && k < DCP_ZEROFILE_KINDS; k++)
		rc = dcp_zerofile_init(&d->files[k], k, &d->model,
				       d->megatron.found ? "PyTorch distributed checkpoint"
							   " of Megatron-LM"
							 : "PyTorch distributed checkpoint",
				       err);
	return rc;
}

/* Return until when files need not be looked at again, if a look took from `begin` until
 * now. */
static uint64_t good_from(uint64_t begin)
{
	const uint64_t now = clock_ns(), wait = (now - begin) * CHECK_PART;

	return now + (wait < CHECK_NS_MAX ? wait : CHECK_NS_MAX);
}

/* Have the files of an open checkpoint not changed?  A server is asked for each, so that
 * this may take long.  One that could not be read is read again. */
static bool is_current(struct dcp *d)
{
	const uint64_t begin = clock_ns();

	if (d->rc || !dcp_blobs_unchanged(&d->blobs))
		return false;
	pthread_mutex_lock(&d->u->lock);
	d->good_until = good_from(begin);
	pthread_mutex_unlock(&d->u->lock);
	return true;
}

/* Called with the context's lock held. */
static void dcp_list(struct dcp *d)
{
	d->users = 1;
	d->next = d->u->dcps;
	d->u->dcps = d;
}

/* Return the listed checkpoint in this directory, if its metadata is that of `own`; else list
 * `own`.  `*good` if its files need not be looked at, as when it is being loaded. */
static struct dcp *ref_listed(struct dcp *own, bool *good)
{
	struct uckpt *const u = own->u;
	const uint64_t now = clock_ns();
	struct dcp *d;

	pthread_mutex_lock(&u->lock);
	d = u->dcps;
	while (d && (strcmp(d->dir, own->dir) != 0 || !fileid_equal(&d->id, &own->id)))
		d = d->next;
	if (d)
		d->users++;
	else
		dcp_list(own);
	*good = !d || !d->loaded || now < d->good_until;
	pthread_mutex_unlock(&u->lock);
	return d ? d : own;
}

/* Load a checkpoint that is listed.  One that cannot be read stays listed with the reason,
 * so that whoever opens it soon gets the same answer. */
static void load_listed(struct dcp *d)
{
	const uint64_t begin = clock_ns();

	d->rc = load_torch(d, &d->why);
	if (d->rc)
		dcp_unload(d);
	pthread_mutex_lock(&d->u->lock);
	d->loaded = true;
	d->good_until = d->rc && d->rc != -ENOMEM ? good_from(begin) : 0;
	pthread_mutex_unlock(&d->u->lock);
}

/* Return the checkpoint that `own` describes: one that is open, unless its files have
 * changed, or `own`, which is listed then.  Only one of the threads that open it loads it. */
static struct dcp *open_shared(struct dcp *own)
{
	struct dcp *d;
	bool good;

	pthread_mutex_lock(&own->loading);
	d = ref_listed(own, &good);
	if (!good && !is_current(d)) {
		dcp_close(d);
		d = own;
		pthread_mutex_lock(&own->u->lock);
		dcp_list(own);
		pthread_mutex_unlock(&own->u->lock);
	}
	if (d == own)
		load_listed(own);
	pthread_mutex_unlock(&own->loading);
	if (d == own)
		return own;
	dcp_free(own);
	pthread_mutex_lock(&d->loading);
	pthread_mutex_unlock(&d->loading);
	return d;
}

int dcp_open(struct uckpt *u, const char *dir, struct dcp **out, struct errmsg *err)
{
	struct dcp found = { .u = u };
	struct dcp *d;
	int rc;

	if (find_checkpoint(u, dir, &found.attrs, &found.is_pair))
		return errmsg_set(err, -ENOENT, "%s: is no distributed checkpoint",
				  dir);
	fileid_from_stat(&found.attrs.st, &found.id);
	d = dcp_new(&found, dir);
	if (!d)
		return errmsg_nomem(err, dir);
	d = open_shared(d);
	*out = d;
	if (!d->rc)
		return 0;
	rc = errmsg_set(err, d->rc, "%s", d->why.text);
	dcp_close(d);
	return rc;
}

/* Take a checkpoint without a user out of the list, but for the last `keep` that were
 * opened; NULL if there is none.  Called with the context's lock held. */
static struct dcp *take_surplus(struct uckpt *u, unsigned keep)
{
	for (struct dcp **at = &u->dcps; *at; at = &(*at)->next) {
		struct dcp *const d = *at;

		if (d->users || (keep && keep--))
			continue;
		*at = d->next;
		return d;
	}
	return NULL;
}

void dcp_close(struct dcp *d)
{
	struct uckpt *const u = d->u;

	pthread_mutex_lock(&u->lock);
	d = --d->users == 0 ? take_surplus(u, KEPT_MAX) : NULL;
	pthread_mutex_unlock(&u->lock);
	dcp_free(d);
}

void dcp_close_kept(struct uckpt *u)
{
	struct dcp *d;

	while ((d = take_surplus(u, 0)))
		dcp_free(d);
}

bool dcp_find(const char *name, enum dcp_zerofile_kind *kind)
{
	for (*kind = 0; *kind < DCP_ZEROFILE_KINDS; ++*kind)
		if (strcmp(name, dcp_zerofile_name(*kind)) == 0)
			return true;
	return false;
}

struct attrs dcp_attrs(const struct dcp *d, enum dcp_zerofile_kind kind)
{
	const struct fileid *const id = &d->id;
	const uint64_t own[] = { id->ino, id->size, (uint64_t)id->mtime_ns, (uint64_t)kind };
	const char *const model = d->u->model ?: "";
	struct attrs a = d->attrs;

	a.st.st_ino = dcp_blobs_hash(&d->blobs, hash_bytes(hash_bytes(0, own, sizeof(own)),
							   model, strlen(model)));
	a.st.st_mode &= S_IFMT | 0666;
	a.st.st_nlink = 1;
	a.st.st_size = (off_t)d->files[kind].w.size;
	a.st.st_blocks = (blkcnt_t)((a.st.st_size + 511) / 512);
	a.st.st_ctim = dcp_blobs_ctime(&d->blobs, a.st.st_ctim);
	return a;
}

int dcp_read(struct dcp *d, enum dcp_zerofile_kind kind, void *buf, size_t len, uint64_t off,
	     struct errmsg *err)
{
	return dcp_zerofile_read(&d->files[kind], &d->blobs, buf, len, off, err);
}

size_t dcp_count(const struct dcp *d)
{
	return d->metadata.nitems;
}

int dcp_check(struct dcp *d, size_t i, struct progress *progress, bool *summed,
	      struct errmsg *err)
{
	return dcp_blobs_check(&d->blobs, &d->metadata.items[i], progress, summed, err);
}
