/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each file by itself: can its object be read, is every member where the zip
 * directory says, and with --data, has it the checksum that was computed when
 * it was written?  Torch's container without zip holds no checksums; all that
 * can be told of it with --data is that its bytes can be read.
 *
 * Files are taken from the directory, not from the plan, so that those of a
 * checkpoint with missing ranks are checked too.  Each is opened once for all
 * that is asked of it, and closed; in memory are the directories of as many
 * files as there are threads.  (Optimizer shards and experts have been
 * opened before for what they mean: that is asked by the plan, which keeps no
 * file open for this part.)
 */
#include "ckpt/check/check.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/sys/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/cmd/progress.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/base/source.h"
#include "ckpt/cmd/diagnose.h"
#include "ckpt/format/zip.h"

/* Damaged members of one file are listed one by one up to here. */
#define MEMBERS_MAX 20

/* --- which files ------------------------------------------------------------- */

static int is_ranks_file(const struct dirent *e)
{
	return names_parse(e->d_name).kind != CKFILE_OTHER;
}

static void add_file(struct check *c, const char *name)
{
	struct check_file f = { 0 };
	struct stat st;

	if (asprintf(&f.path, "%s/%s", c->dir, name) < 0)
		return;
	if (stat(f.path, &st) == 0 && S_ISREG(st.st_mode))
		f.size = (uint64_t)st.st_size;
	c->bytes += f.size;
	c->files[c->nfiles++] = f;
}

void check_list_files(struct check *c)
{
	struct dirent **entries;
	const int n = scandir(c->dir, &entries, is_ranks_file, versionsort);

	if (n < 0) {
		lines_add(&c->problems, "%s: cannot list: %s", c->dir,
			  strerror(errno));
		return;
	}
	c->files = calloc((size_t)n + 1, sizeof(*c->files));
	if (!c->files)
		lines_add(&c->problems, "out of memory");
	for (int i = 0; i < n; i++) {
		if (c->files)
			add_file(c, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
}

/* --- directories ------------------------------------------------------------- */

/* A problem of one member; false if there are enough of them. */
static bool add_problem(struct check_file *f, const char *text)
{
	if (f->problems.n >= MEMBERS_MAX) {
		lines_add(&f->problems, "%s: more members are damaged",
			  f->path);
		return false;
	}
	lines_add_new(&f->problems, text);
	return true;
}

static void locate_all(struct check_file *f, const struct zip *z)
{
	for (size_t i = 0; i < z->n; i++) {
		struct errmsg err;
		uint64_t offset;

		if (zip_locate(z, &z->entries[i], &offset, &err) &&
		    !add_problem(f, err.text))
			break;
	}
}

/* --- checksums --------------------------------------------------------------- */

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
			 const struct checksum *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct errmsg err;

		if (v[i].crc == e[i]->crc)
			continue;
		errmsg_set(&err, 0, "%s: member %s: is damaged: the CRC-32 of"
			   " its %" PRIu64 " bytes at %" PRIu64 " is %08" PRIx32
			   ", written was %08" PRIx32, f->path, e[i]->name,
			   v[i].len, v[i].off, v[i].crc, e[i]->crc);
		if (!add_problem(f, err.text))
			return;
	}
}

/* Those that cannot be located have been told about. */
static size_t list_members(const struct zip *z, const struct zip_entry **e,
			   struct checksum *v)
{
	size_t n = 0;

	for (size_t i = 0; i < z->n; i++) {
		v[n] = (struct checksum){ .len = z->entries[i].size };
		e[n] = &z->entries[i];
		if (v[n].len && !zip_locate(z, e[n], &v[n].off, NULL))
			n++;
	}
	return n;
}

static void sum_file(struct check_file *f, const struct ptfile *pt,
		     struct progress *progress, unsigned width)
{
	const size_t max = pt->is_zip ? pt->zip.n : 1;
	struct checksum *const v = calloc(max + 1, sizeof(*v));
	const struct zip_entry **const e = calloc(max + 1, sizeof(*e));
	struct reading r = { &pt->src, progress };
	struct errmsg err = { "" };
	size_t n = 1;
	int rc = -ENOMEM;

	if (v && e) {
		if (pt->is_zip)
			n = list_members(&pt->zip, e, v);
		else
			v[0].len = pt->src.size;
		rc = checksum_ranges(v, n, width, read_bytes, &r, &err);
	}
	if (rc)
		add_problem(f, err.text[0] ? err.text : "out of memory");
	else if (f->summed)
		compare_sums(f, e, v, n);
	free(v);
	free(e);
}

static void note_without_sums(struct check *c, const struct check_file *f)
{
	if (f->problems.n || f->summed)
		return;
	if (f->is_zip)
		lines_add(&c->notes, "%s: no checksums in it, they were"
			  " switched off when it was written", f->path);
	else
		lines_add(&c->notes, "%s: no checksums in it, torch's"
			  " container without zip has none", f->path);
}

/* --- one file after the other -------------------------------------------------- */

static void check_facts(const struct check *c, struct check_file *f,
			const struct ptfile *pt)
{
	const enum ckfile_kind kind =
		names_parse(strrchr(f->path, '/') + 1).kind;
	struct errmsg err;

	if (c->plan && (kind == CKFILE_MODEL || kind == CKFILE_MODEL3) &&
	    survey_facts(c->plan, f->path, pt->root, &err))
		lines_add_new(&f->problems, err.text);
}

static unsigned files_at_once(const struct check *c)
{
	const unsigned width = parallel_width();

	return c->nfiles < width ? (unsigned)c->nfiles + !c->nfiles : width;
}

static int check_file(void *ctx, size_t i)
{
	struct check *const c = ctx;
	struct check_file *const f = &c->files[i];
	struct errmsg err = { "" };
	struct ptfile pt;

	if (ptfile_open(&pt, f->path, &err)) {
		lines_add_new(&f->problems, err.text);
		return 0;
	}
	f->is_zip = pt.is_zip;
	for (size_t k = 0; k < pt.zip.n; k++)
		f->summed |= pt.zip.entries[k].size && pt.zip.entries[k].crc;
	locate_all(f, &pt.zip);
	check_facts(c, f, &pt);
	if (c->data)
		sum_file(f, &pt, c->progress,
			 parallel_width() / files_at_once(c));
	ptfile_close(&pt);
	return 0;
}

void check_files(struct check *c)
{
	parallel_for(c->nfiles, files_at_once(c), check_file, c);
	for (size_t i = 0; i < c->nfiles; i++) {
		if (c->data)
			note_without_sums(c, &c->files[i]);
		lines_take(&c->problems, &c->files[i].problems);
	}
}

void check_files_done(struct check *c)
{
	for (size_t i = 0; i < c->nfiles; i++)
		free(c->files[i].path);
	free(c->files);
}
