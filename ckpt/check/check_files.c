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
#include "ckpt/cmd/progress.h"
#include "ckpt/dirs/names.h"
#include "ckpt/files/files.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/zip.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/zero/complete.h"

/* At most this many damaged members of one file are listed. */
#define MEMBERS_MAX 20

/* --- which files ------------------------------------------------------------- */

static void check_files_add_file(struct check *c, const char *name)
{
	struct check_file f = { 0 };
	struct stat st;

	if (asprintf(&f.path, "%s/%s", c->dir, name) < 0)
		return;
	if (files_stat(f.path, &st, NULL) == 0 && S_ISREG(st.st_mode))
		f.size = (uint64_t)st.st_size;
	c->bytes += f.size;
	c->files[c->nfiles++] = f;
}

void check_list_files(struct check *c)
{
	struct errmsg err = { "" };
	char **names;
	size_t n;

	if (files_names(c->dir, &names, &n, &err)) {
		findings_add(&c->problems, "%s", err.text);
		return;
	}
	c->files = calloc(n + 1, sizeof(*c->files));
	if (!c->files)
		findings_add(&c->problems, "out of memory");
	for (size_t i = 0; c->files && i < n; i++)
		if (names_parse(names[i]).kind != TAG_FILE_OTHER)
			check_files_add_file(c, names[i]);
	files_names_free(names, n);
}

/* --- directories ------------------------------------------------------------- */

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
			 const struct crc_range *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct errmsg err;

		if (v[i].crc == e[i]->crc)
			continue;
		errmsg_set(&err, 0, "%s: member %s: is damaged: the CRC-32 of"
			   " its %" PRIu64 " bytes at %" PRIu64 " is %08" PRIx32
			   ", expected %08" PRIx32, f->path, e[i]->name,
			   v[i].len, v[i].off, v[i].crc, e[i]->crc);
		if (!add_problem(f, err.text))
			return;
	}
}

/* Skip members that cannot be located; those have been reported. */
static size_t list_members(const struct zip *z, const struct zip_entry **e,
			   struct crc_range *v)
{
	size_t n = 0;

	for (size_t i = 0; i < z->n; i++) {
		v[n] = (struct crc_range){ .len = z->entries[i].size };
		e[n] = &z->entries[i];
		if (v[n].len && !zip_locate(z, e[n], &v[n].off, NULL))
			n++;
	}
	assert(n <= z->n);
	return n;
}

static void sum_file(struct check_file *f, const struct ptfile *pt,
		     struct progress *progress, unsigned width)
{
	const size_t max = pt->is_zip ? pt->zip.n : 1;
	struct crc_range *const v = calloc(max + 1, sizeof(*v));
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
		rc = crc32_ranges(v, n, width, read_bytes, &r, &err);
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
		findings_add(&c->notes,
			     "%s: has no checksums: they were disabled"
			     " when it was written",
			     f->path);
	else
		findings_add(&c->notes,
			     "%s: has no checksums: torch's container"
			     " without zip does not store any",
			     f->path);
}

/* --- one file after the other -------------------------------------------------- */

static void check_facts(const struct check *c, struct check_file *f,
			const struct ptfile *pt)
{
	const enum tag_file_kind kind =
		names_parse(strrchr(f->path, '/') + 1).kind;
	struct errmsg err;

	if (c->plan && (kind == TAG_FILE_MODEL || kind == TAG_FILE_MODEL3) &&
	    zckpt_check_facts(plan_zckpt(c->plan), f->path, pt->root, &err))
		findings_add_new(&f->problems, err.text);
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
		findings_add_new(&f->problems, err.text);
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
		findings_take(&c->problems, &c->files[i].problems);
	}
}

void check_files_done(struct check *c)
{
	for (size_t i = 0; i < c->nfiles; i++)
		free(c->files[i].path);
	free(c->files);
}
