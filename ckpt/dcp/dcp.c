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
#include "ckpt/dcp/megatron.h"
#include "ckpt/pack/packfs.h"
#include "ckpt/sys/clock.h"

/* Checkpoints that stay open without a user: that of a run that is being looked at. */
#define KEPT_MAX 2u

struct dcp {
	struct uckpt *u;
	char *dir;
	struct attrs attrs; /* of the metadata */
	struct fileid id;   /* of the metadata */
	struct dcp_metadata metadata;
	struct dcp_megatron megatron;
	struct dcp_blobs blobs;
	struct dcp_model model;
	struct dcp_zerofile files[DCP_ZEROFILE_KINDS];
	/* Protected by the context's lock: */
	unsigned users;
	struct dcp *next;
	uint64_t good_until; /* clock_ns() until which its files are not looked at */
};

/* What looking at all files takes is at most this part of the time, and they are looked at
 * every 10 s at least. */
#define CHECK_PART 20u
#define CHECK_NS_MAX (UINT64_C(10) * 1000000000)

static const char *const pair[] = { DCP_PAIR_MODEL, DCP_PAIR_OPTIMIZER };

/* Find the metadata of the checkpoint, or of one of a pair: its attributes. */
static int find_metadata(struct uckpt *u, const char *dir, const char *below,
			 struct attrs *a)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s%s%s/" DCP_METADATA, dir, below ? "/" : "",
		     below ? below : "") < 0)
		return -ENOMEM;
	rc = packfs_stat(u, path, false, a, NULL);
	free(path);
	return rc;
}

bool dcp_is_one(struct uckpt *u, const char *dir)
{
	struct attrs a;

	return find_metadata(u, dir, NULL, &a) == 0 ||
	       find_metadata(u, dir, pair[0], &a) == 0;
}

static void dcp_free(struct dcp *d)
{
	if (!d)
		return;
	for (size_t i = 0; i < COUNT(d->files); i++)
		dcp_zerofile_done(&d->files[i]);
	dcp_model_done(&d->model);
	dcp_blobs_done(&d->blobs);
	dcp_metadata_done(&d->metadata);
	free(d->dir);
	free(d);
}

/* Read the metadata of the directory, or of both of a pair. */
static int read_metadata(struct dcp *d, struct errmsg *err)
{
	int rc = find_metadata(d->u, d->dir, NULL, &d->attrs);
	struct attrs a;

	if (!rc)
		rc = dcp_metadata_add(&d->metadata, d->u, d->dir, err);
	else
		for (size_t i = 0; i < COUNT(pair); i++) {
			char *path;

			rc = find_metadata(d->u, d->dir, pair[i], &a);
			if (rc && i)
				return 0; /* saved without the optimizer */
			if (i)
				access_restrict(&d->attrs.access, &a.access);
			else
				d->attrs = a;
			if (asprintf(&path, "%s/%s", d->dir, pair[i]) < 0)
				return errmsg_nomem(err, d->dir);
			rc = rc ?: dcp_metadata_add(&d->metadata, d->u, path, err);
			free(path);
			if (rc)
				break;
		}
	return rc;
}

static int dcp_load(struct dcp *d, struct errmsg *err)
{
	int rc = read_metadata(d, err);

	if (rc)
		return rc;
	fileid_from_stat(&d->attrs.st, &d->id);
	rc = dcp_megatron_find(&d->megatron, &d->metadata, d->u, d->dir, err) ?:
	     dcp_blobs_init(&d->blobs, d->u, d->dir, &d->metadata,
			    &d->attrs.access, err) ?:
	     dcp_model_find(&d->model, &d->metadata, &d->megatron, &d->blobs, d->dir,
			    err);
	for (int i = 0; !rc && i < DCP_ZEROFILE_KINDS; i++)
		rc = dcp_zerofile_init(&d->files[i], (enum dcp_zerofile_kind)i,
				       &d->model,
				       d->megatron.found
					       ? "PyTorch distributed checkpoint of"
						 " Megatron-LM"
					       : "PyTorch distributed checkpoint",
				       err);
	return rc;
}

/* Have the files of an open checkpoint not changed?  A server is asked for each, so that
 * this may take long. */
static bool is_current(struct dcp *d)
{
	const uint64_t begin = clock_ns();
	const bool same = dcp_blobs_unchanged(&d->blobs);
	const uint64_t end = clock_ns(), wait = (end - begin) * CHECK_PART;

	if (!same)
		return false;
	pthread_mutex_lock(&d->u->lock);
	d->good_until = end + (wait < CHECK_NS_MAX ? wait : CHECK_NS_MAX);
	pthread_mutex_unlock(&d->u->lock);
	return true;
}

/* The open checkpoint of this directory whose files have not changed; NULL: none. */
static struct dcp *ref_open(struct uckpt *u, const char *dir)
{
	const uint64_t now = clock_ns();
	bool good = false;
	struct fileid id;
	struct attrs a;
	struct dcp *d;

	if (find_metadata(u, dir, NULL, &a) && find_metadata(u, dir, pair[0], &a))
		return NULL;
	fileid_from_stat(&a.st, &id);
	pthread_mutex_lock(&u->lock);
	d = u->dcps;
	while (d && (strcmp(d->dir, dir) != 0 || !fileid_equal(&d->id, &id)))
		d = d->next;
	if (d) {
		d->users++;
		good = now < d->good_until;
	}
	pthread_mutex_unlock(&u->lock);
	if (!d || good || is_current(d))
		return d;
	dcp_close(d);
	return NULL;
}

int dcp_open(struct uckpt *u, const char *dir, struct dcp **out, struct errmsg *err)
{
	struct dcp *d = ref_open(u, dir);
	int rc;

	if (d) {
		*out = d;
		return 0;
	}
	d = calloc(1, sizeof(*d));
	if (!d)
		return errmsg_nomem(err, dir);
	*d = (struct dcp){ .u = u, .dir = strdup(dir), .users = 1 };
	rc = d->dir ? dcp_load(d, err) : errmsg_nomem(err, dir);
	if (rc) {
		dcp_free(d);
		return rc;
	}
	/* Another thread may have opened it meanwhile; then there are two. */
	pthread_mutex_lock(&u->lock);
	d->next = u->dcps;
	u->dcps = d;
	pthread_mutex_unlock(&u->lock);
	*out = d;
	return 0;
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

struct attrs dcp_attrs(const struct dcp *d, enum dcp_zerofile_kind kind)
{
	const struct fileid *const id = &d->id;
	const uint64_t own[] = { id->ino, id->size, (uint64_t)id->mtime_ns,
				 (uint64_t)kind };
	struct attrs a = d->attrs;

	a.st.st_ino = dcp_blobs_hash(&d->blobs, hash_bytes(0, own, sizeof(own)));
	a.st.st_mode &= S_IFMT | 0444;
	a.st.st_nlink = 1;
	a.st.st_size = (off_t)d->files[kind].w.size;
	a.st.st_blocks = (blkcnt_t)((a.st.st_size + 511) / 512);
	a.st.st_ctim = a.st.st_mtim;
	return a;
}

int dcp_read(struct dcp *d, enum dcp_zerofile_kind kind, void *buf, size_t len,
	     uint64_t off, struct errmsg *err)
{
	return dcp_zerofile_read(&d->files[kind], &d->blobs, buf, len, off, err);
}

size_t dcp_count(const struct dcp *d)
{
	return d->metadata.nitems;
}

int dcp_check(struct dcp *d, size_t i, struct progress *progress, struct errmsg *err)
{
	return dcp_blobs_check(&d->blobs, &d->metadata.items[i], progress, err);
}
