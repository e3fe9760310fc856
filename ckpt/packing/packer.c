/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing as a whole.  The pack is read back from its temporary file before it
 * gets its name: what is verified is what is there, not what was meant to be
 * written.
 */
#include "ckpt/packing/packer.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/pack/pack.h"
#include "ckpt/pack/pack_extract.h"
#include "ckpt/pack/pack_write.h"
#include "ckpt/packing/pack_derive.h"
#include "ckpt/packing/pack_inputs.h"
#include "ckpt/sys/outdir.h"
#include "ckpt/sys/outfile.h"

/* Progress over several passes. */
struct passes {
	const struct packer_options *o;
	uint64_t all;
};

static bool on_progress(void *ctx, uint64_t bytes)
{
	const struct passes *const p = ctx;

	return !p->o->progress || p->o->progress(p->o->ctx, bytes, p->all);
}

static int extract(struct pack *pack, int dir, struct passes *p,
		   struct errmsg *err)
{
	const struct pack_extract_options o = { .width = p->o->width,
						.progress = on_progress,
						.ctx = p };

	return pack_extract(pack, dir, &o, err);
}

static void count_entries(const struct pack *p, struct packer_result *out)
{
	const struct pack_index *const x = pack_index_of(p);

	*out = (struct packer_result){ .packed = pack_id(p)->size };
	for (uint32_t i = 0; i < x->nentries; i++) {
		out->files += S_ISREG(x->entries[i].mode);
		out->bytes += x->entries[i].size;
	}
}

/* Do the entries in a new pack have what the index should say? */
static int check_entries(const struct pack *p, const struct pack_inputs *x,
			 struct errmsg *err)
{
	const struct pack_index *const index = pack_index_of(p);
	bool same = index->nentries == x->n;

	for (uint32_t i = 0; same && i < index->nentries; i++) {
		const struct pack_entry *const e = &index->entries[i];
		const struct pack_input *const in = &x->v[i];

		same = strcmp(e->name, in->name) == 0 && e->mode == in->mode &&
		       e->mtime_s == in->mtime_s &&
		       e->mtime_ns == in->mtime_ns &&
		       e->size == (S_ISREG(in->mode) ? in->id.size : 0);
	}
	return same ? 0
		    : errmsg_set(err, -EBADMSG,
				 "the pack does not list what was packed");
}

static int verify_new(const char *path, const struct pack_inputs *x,
		      struct passes *p, struct packer_result *result,
		      struct errmsg *err)
{
	struct pack *pack;
	int rc = pack_open(path, &pack, err);

	if (rc)
		return rc;
	rc = check_entries(pack, x, err);
	if (!rc)
		rc = extract(pack, -1, p, err);
	count_entries(pack, result);
	pack_close(pack);
	return rc;
}

/* Are all files still what was packed? */
static int check_inputs(const struct pack_inputs *x, struct errmsg *err)
{
	for (size_t i = 0; i < x->n; i++) {
		struct fileid now;
		struct stat st;

		if (lstat(x->v[i].path, &st) < 0)
			return errmsg_set(err, -errno, "%s: %s", x->v[i].path,
					  strerror(errno));
		fileid_from_stat(&st, &now);
		if (S_ISREG(x->v[i].mode) && !fileid_equal(&now, &x->v[i].id))
			return fileid_report_change(x->v[i].path, &x->v[i].id,
						    &now, err);
	}
	return 0;
}

/* What was packed, and nothing else: a directory with new files stays. */
static int remove_inputs(const struct pack_inputs *x, struct errmsg *err)
{
	int rc = check_inputs(x, err);

	for (size_t i = x->n; !rc && i-- > 0;)
		if (unlinkat(AT_FDCWD, x->v[i].path,
			     S_ISDIR(x->v[i].mode) ? AT_REMOVEDIR : 0) < 0)
			rc = errmsg_set(err, -errno, "%s: cannot remove: %s",
					x->v[i].path, strerror(errno));
	return rc;
}

static int write_pack(const struct pack_inputs *x, struct outfile *out,
		      struct passes *p, struct packer_result *result,
		      struct errmsg *err)
{
	const struct pack_write_options o = { .name = out->final,
					      .width = p->o->width,
					      .progress = on_progress,
					      .ctx = p };
	uint64_t size;
	int rc;

	for (size_t i = 0; i < x->n; i++)
		p->all += S_ISREG(x->v[i].mode) ? 2 * x->v[i].id.size : 0;
	on_progress(p, 0);
	rc = pack_write(out->fd, x->v, x->n, &o, &size, err);
	if (!rc)
		rc = outfile_sync(out, err);
	if (!rc)
		rc = verify_new(out->tmp, x, p, result, err);
	return rc ? rc : outfile_commit(out, err);
}

int packer_pack(const char *dir, const char *out, bool remove,
		const struct packer_options *o, struct packer_result *result,
		struct errmsg *err)
{
	struct passes p = { .o = o };
	struct pack_inputs x;
	struct outfile file;
	int rc = outfile_open(&file, out, err);

	if (rc)
		return rc;
	rc = pack_inputs_list(&x, dir, err);
	if (!rc) {
		rc = pack_derive(&x, dir, err);
		if (!rc)
			rc = write_pack(&x, &file, &p, result, err);
		if (!rc && remove)
			rc = remove_inputs(&x, err);
		pack_inputs_done(&x);
	}
	outfile_close(&file);
	return rc;
}

int packer_unpack(const char *path, const char *out,
		  const struct packer_options *o, struct packer_result *result,
		  struct errmsg *err)
{
	struct passes p = { .o = o };
	struct outdir dir;
	struct pack *pack;
	int rc = pack_open(path, &pack, err);

	if (rc)
		return rc;
	count_entries(pack, result);
	p.all = result->bytes;
	on_progress(&p, 0);
	rc = outdir_open(&dir, out, err);
	if (!rc) {
		rc = extract(pack, dir.fd, &p, err);
		if (!rc)
			rc = outdir_commit(&dir, NULL, err);
		outdir_close(&dir);
	}
	pack_close(pack);
	return rc;
}

int packer_verify(const char *path, const struct packer_options *o,
		  struct packer_result *result, struct errmsg *err)
{
	struct passes p = { .o = o };
	struct pack *pack;
	int rc = pack_open(path, &pack, err);

	if (rc)
		return rc;
	count_entries(pack, result);
	p.all = result->bytes;
	on_progress(&p, 0);
	rc = extract(pack, -1, &p, err);
	pack_close(pack);
	return rc;
}
