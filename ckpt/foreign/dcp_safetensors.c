/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch's FileSystemWriter with SerializationFormat.SAFETENSORS: each file is in safetensors
 * format, with a tensor per chunk under its key.  The metadata has no offsets, and its lengths
 * exclude the bytes that torch.save would add.
 */
#include "ckpt/foreign/dcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/io/io.h"

struct finding {
	struct dcp_checkpoint *x;
	struct dcp_key *by_key;
	bool *wanted; /* per file */
};

bool dcp_is_raw(const struct dcp_entry *t, const struct dcp_chunk *c)
{
	return t->is_tensor && t->dtype != DTYPE_OTHER && c->numel &&
	       c->len == c->numel * dtype_size(t->dtype);
}

/* Return the chunk of a tensor in a file; NULL if there is none, or if several cannot be
 * distinguished. */
static struct dcp_chunk *find_chunk(const struct dcp_entry *t, size_t file)
{
	struct dcp_chunk *found = NULL;

	for (size_t i = 0; i < t->nchunks; i++) {
		if (t->chunks[i].file != file || !t->chunks[i].numel)
			continue;
		if (found)
			return NULL;
		found = &t->chunks[i];
	}
	return found;
}

/* Set the place of a chunk; one that contradicts the metadata is reported as missing later. */
static void note(const struct finding *f, size_t file, const struct stored *v)
{
	const struct dcp_key *k =
		array_find(f->by_key, f->x->metadata.nentries, sizeof(*k), v->name);
	const struct dcp_entry *t = k ? k->entry : NULL;
	struct dcp_chunk *c = t ? find_chunk(t, file) : NULL;

	if (c && dcp_is_raw(t, c) && v->dtype == t->dtype && v->ndim == t->ndim &&
	    (!v->ndim || memcmp(v->shape, c->size, v->ndim * sizeof(*v->shape)) == 0))
		atomic_store(&c->data, v->storage);
}

static int read_file(void *ctx, size_t i, struct errmsg *err)
{
	const struct finding *f = ctx;
	const struct ckpt_file *file = &f->x->files[i];
	struct safetensors s = { 0 };
	struct source src;
	int rc;

	if (!f->wanted[i])
		return 0;
	rc = io_open(f->x->c.u, file->path, &file->file, &src, err);
	if (rc)
		return rc;
	rc = safetensors_read(&s, &src, err);
	for (size_t k = 0; !rc && k < s.n; k++)
		note(f, i, &s.v[k]);
	safetensors_done(&s);
	source_close(&src);
	return rc;
}

/* Mark the files that have such chunks. */
static bool want_files(struct finding *f)
{
	const struct dcp_metadata *m = &f->x->metadata;
	bool any = false;

	for (size_t i = 0; i < m->nentries; i++)
		for (size_t k = 0; k < m->entries[i].nchunks; k++)
			if (dcp_is_raw(&m->entries[i], &m->entries[i].chunks[k]))
				any = f->wanted[m->entries[i].chunks[k].file] = true;
	return any;
}

static int check_found(const struct dcp_checkpoint *x, struct errmsg *err)
{
	const struct dcp_metadata *m = &x->metadata;

	for (size_t i = 0; i < m->nentries; i++)
		for (size_t k = 0; k < m->entries[i].nchunks; k++) {
			const struct dcp_chunk *c = &m->entries[i].chunks[k];

			if (dcp_is_raw(&m->entries[i], c) && !c->data)
				return errmsg_set(err, -EBADMSG,
					"%s: %s: is not in it as " DCP_METADATA " says",
					x->files[c->file].path, m->entries[i].key);
		}
	return 0;
}

int dcp_safetensors_find(struct dcp_checkpoint *x, struct errmsg *err)
{
	const struct dcp_metadata *m = &x->metadata;
	struct finding f = { .x = x, .wanted = calloc(m->nfiles + 1, sizeof(*f.wanted)) };
	int rc = f.wanted ? 0 : errmsg_nomem(err, x->c.path);

	if (!rc && want_files(&f)) {
		f.by_key = dcp_entries_by_key(m);
		rc = f.by_key ? parallel_far(m->nfiles, 1, read_file, &f, err)
						?: check_found(x, err)
			      : errmsg_nomem(err, x->c.path);
	}
	free(f.by_key);
	free(f.wanted);
	return rc;
}
