/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks each file by itself: its object can be read, every member is where the
 * zip directory says, and with --data its bytes match the CRC-32 that was
 * written with them.  Torch's older container without zip holds no checksums;
 * --data shows only that its bytes can be read.
 *
 * The files are those in the directory, not those of the plan, so that a
 * checkpoint with missing ranks is checked too.  Each file is opened once, and
 * memory holds the directories of one file per thread.  (Optimizer shards and
 * experts have been opened before by the plan, which does not keep them open.)
 */
#include "ckpt/check/check.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/cmd/cmd.h"
#include "ckpt/cmd/progress.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/dirs/names.h"
#include "ckpt/files/files.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/zip.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/vfile/vfile_source.h"
#include "ckpt/zero/complete.h"

/* At most this many damaged members of one file are listed. */
#define MEMBERS_MAX 20

static void add_file(struct check *c, const char *name)
{
	struct check_file *const f = &c->files[c->nfiles++];
	struct fileid id = { 0 };
	char *where = NULL; /* in the root that has it */
	struct stat st;

	if (asprintf(&f->path, "%s/%s", c->report.dir, name) < 0)
		cmd_nomem();
	if (files_find(c->report.u, f->path, &where, &st, NULL, NULL) == 0 &&
	    S_ISREG(st.st_mode))
		fileid_from_stat(&st, &id);
	c->bytes += id.size;
	if (shardcache_add(c->shards, where ? where : f->path, &id) < 0)
		cmd_nomem();
	free(where);
}

void check_list_files(struct check *c)
{
	struct errmsg err = { "" };
	struct hfdir weights = { 0 };
	struct dirlist l = { 0 };

	c->shards = shardcache_new(c->report.u);
	if (!c->shards)
		cmd_nomem();
	if (c->report.choice == TAGS_WEIGHTS) {
		/* What is wrong with them is a problem of the plan. */
		if (hfdir_open(c->report.u, &weights, c->report.dir, NULL))
			return;
	} else if (files_list(c->report.u, c->report.dir, true, &l, &err)) {
		findings_add_new(&c->report.problems, err.text);
		return;
	}
	c->params = weights.n;
	c->files = cmd_alloc(weights.nfiles + l.n, sizeof(*c->files));
	for (size_t i = 0; i < weights.nfiles; i++)
		add_file(c, weights.files[i].name);
	for (size_t i = 0; i < l.n; i++)
		if (names_parse(l.v[i].name).kind != TAG_FILE_OTHER)
			add_file(c, l.v[i].name);
	hfdir_done(&weights);
	dirlist_done(&l);
}

/* Add a problem of one member.  Returns false once the list is full. */
static bool add_problem(struct check_file *f, const char *text)
{
	if (f->problems.n >= MEMBERS_MAX) {
		findings_add(&f->problems,
			     "%s: more members are damaged (not listed)",
			     f->path);
		return false;
	}
	findings_add_new(&f->problems, text);
	return true;
}

struct locating {
	const struct zip *z;
	uint64_t *at; /* of each entry's bytes; 0: cannot be located */
};

static int locate(void *ctx, size_t i, struct errmsg *ignored)
{
	struct locating *const l = ctx;

	(void)ignored;
	if (zip_locate(l->z, &l->z->entries[i], &l->at[i], NULL))
		l->at[i] = 0;
	return 0;
}

/* Locate all members.  Their headers lie all over the file. */
static void locate_all(struct check_file *f, struct locating *l)
{
	const struct zip *const z = l->z;
	struct errmsg err;

	parallel_far(z->n, 1, locate, l, NULL);
	for (size_t i = 0; i < z->n; i++)
		if (!l->at[i] && zip_locate(z, &z->entries[i], &l->at[i], &err) &&
		    !add_problem(f, err.text))
			break;
}

struct reading {
	const struct source *src;
	struct progress *progress;
};

static int read_bytes(void *ctx, void *buf, size_t len, uint64_t off,
		      struct errmsg *err)
{
	const struct reading *const r = ctx;
	const int rc = source_read(r->src, buf, len, off, err);

	if (!rc)
		progress_add(r->progress, len);
	return rc;
}

static void compare_sums(struct check_file *f, const struct zip_entry *const *e,
			 const struct crc_range *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct errmsg err;

		if (v[i].crc == e[i]->crc)
			continue;
		errmsg_set(&err, 0,
			   "%s: member %s: is damaged: the CRC-32 of"
			   " its %" PRIu64 " bytes at %" PRIu64 " is %08" PRIx32
			   ", expected %08" PRIx32,
			   f->path, e[i]->name, v[i].len, v[i].off, v[i].crc,
			   e[i]->crc);
		if (!add_problem(f, err.text))
			return;
	}
}

static int compare_entries(const void *a, const void *b)
{
	const struct zip_entry *const x = *(const struct zip_entry *const *)a;
	const struct zip_entry *const y = *(const struct zip_entry *const *)b;

	return (x->header > y->header) - (x->header < y->header);
}

/* List them in the order of the file.  Skip members that cannot be located; those have
 * been reported. */
static size_t list_members(const struct locating *l, const struct zip_entry **e,
			   struct crc_range *v)
{
	const struct zip *const z = l->z;
	size_t n = 0;

	for (size_t i = 0; i < z->n; i++)
		e[i] = &z->entries[i];
	qsort(e, z->n, sizeof(*e), compare_entries);
	for (size_t i = 0; i < z->n; i++) {
		v[n] = (struct crc_range){ .off = l->at[e[i] - z->entries],
					   .len = e[i]->size };
		e[n] = e[i];
		if (v[n].len && v[n].off)
			n++;
	}
	assert(n <= z->n);
	return n;
}

/* Sum members of a file that is opened again, to be read ahead. */
static int sum_members(struct check *c, const struct check_file *f,
		       struct crc_range *v, size_t n, unsigned width,
		       struct errmsg *err)
{
	struct vfile *const file =
		vfile_new_verbatim(c->shards, (uint32_t)(f - c->files), err);
	struct source src;
	struct reading r = { &src, c->progress };
	int rc = file ? vfile_source_open(&src, file, f->path, err) : -EIO;

	if (rc)
		return rc;
	vfile_source_expect(&src, n ? v[n - 1].off + v[n - 1].len : 0);
	rc = crc32_ranges(v, n, width, read_bytes, &r, err);
	source_close(&src);
	return rc;
}

static void sum_file(struct check *c, struct check_file *f,
		     const struct ptfile *pt, const struct locating *l,
		     unsigned width)
{
	const size_t max = pt->is_zip ? pt->zip.n : 1;
	struct crc_range *const v = cmd_alloc(max, sizeof(*v));
	const struct zip_entry **const e = cmd_alloc(max, sizeof(*e));
	struct errmsg err;
	size_t n = 1;

	if (pt->is_zip)
		n = list_members(l, e, v);
	else
		v[0].len = pt->src.size;
	if (sum_members(c, f, v, n, width, &err))
		add_problem(f, err.text);
	else if (f->summed)
		compare_sums(f, e, v, n);
	free(v);
	free(e);
}

static bool is_safetensors(const struct check_file *f)
{
	return names_ends_with(f->path, ".safetensors");
}

static void note_without_sums(struct check *c, const struct check_file *f)
{
	if (f->problems.n || f->summed)
		return;
	if (f->is_zip)
		findings_add(&c->report.notes,
			     "%s: has no checksums: they were disabled"
			     " when it was written",
			     f->path);
	else
		findings_add(
			&c->report.notes,
			"%s: has no checksums: %s does not store any", f->path,
			is_safetensors(f) ? "safetensors"
					  : "torch's container without zip");
}

static void check_facts(const struct check *c, struct check_file *f,
			const struct ptfile *pt)
{
	const enum tag_file_kind kind =
		names_parse(strrchr(f->path, '/') + 1).kind;
	struct errmsg err;

	if (c->report.plan &&
	    (kind == TAG_FILE_MODEL || kind == TAG_FILE_MODEL3) &&
	    zckpt_check_facts(plan_zckpt(c->report.plan), f->path, pt->root,
			      &err))
		findings_add_new(&f->problems, err.text);
}

static unsigned files_at_once(const struct check *c)
{
	const unsigned width = parallel_width();

	return c->nfiles < width ? (unsigned)c->nfiles + !c->nfiles : width;
}

static int check_file(void *ctx, size_t i, struct errmsg *ignored)
{
	struct check *const c = ctx;
	struct check_file *const f = &c->files[i];
	struct errmsg err = { "" };
	struct ptfile pt = { 0 };
	struct locating l = { .z = &pt.zip };

	(void)ignored;
	/* Opening the plan has read the headers of safetensors. */
	if (is_safetensors(f) ? files_open(c->report.u, &pt.src, f->path, &err)
			      : ptfile_open(c->report.u, &pt, f->path, &err)) {
		findings_add_new(&f->problems, err.text);
		return 0;
	}
	f->is_zip = pt.is_zip;
	for (size_t k = 0; k < pt.zip.n; k++)
		f->summed |= pt.zip.entries[k].size && pt.zip.entries[k].crc;
	l.at = cmd_alloc(pt.zip.n, sizeof(*l.at));
	locate_all(f, &l);
	check_facts(c, f, &pt);
	if (c->data)
		sum_file(c, f, &pt, &l, parallel_width() / files_at_once(c));
	free(l.at);
	ptfile_close(&pt);
	return 0;
}

void check_files(struct check *c)
{
	/* A few that are read ahead are enough. */
	if (c->data)
		parallel_for(c->nfiles, files_at_once(c), check_file, c, NULL);
	else
		parallel_far(c->nfiles, files_at_once(c), check_file, c, NULL);
	for (size_t i = 0; i < c->nfiles; i++) {
		if (c->data)
			note_without_sums(c, &c->files[i]);
		findings_take(&c->report.problems, &c->files[i].problems);
	}
}

void check_files_done(struct check *c)
{
	for (size_t i = 0; i < c->nfiles; i++)
		free(c->files[i].path);
	free(c->files);
	shardcache_free(c->shards);
}
