/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each file by itself: can its object be read, is every member where the zip
 * directory says, and with --data, has it the checksum that was computed when
 * it was written?  Torch's container without zip holds no checksums; all that
 * can be told of it with --data is that its bytes can be read.
 *
 * Files are taken from the directory, not from the plan, so that those of a
 * checkpoint with missing ranks are checked too.  Sums are computed by pieces
 * in parallel and combined, since one file may be most of a checkpoint; in
 * memory are a buffer for each thread and the directories of as many files.
 */
#include "ckpt/cmd_check.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <libdeflate.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "ckpt/errmsg.h"
#include "ckpt/names.h"
#include "ckpt/parallel.h"
#include "ckpt/progress.h"
#include "ckpt/ptfile.h"
#include "ckpt/source.h"
#include "ckpt/zip.h"

/* Bytes read at once: stays in the second-level cache. */
#define READ_CHUNK (256u << 10)

/* Bytes that one thread sums at a time. */
#define PIECE_LEN (UINT64_C(16) << 20)

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

static void list_files(struct check *c)
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

static int check_directory(void *ctx, size_t i)
{
	struct check_file *const f = &((struct check *)ctx)->files[i];
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
	ptfile_close(&pt);
	return 0;
}

static void take_problems(struct check *c)
{
	for (size_t i = 0; i < c->nfiles; i++)
		lines_take(&c->problems, &c->files[i].problems);
}

void check_files(struct check *c)
{
	list_files(c);
	parallel_for(c->nfiles, parallel_width(), check_directory, c);
	take_problems(c);
}

void check_files_done(struct check *c)
{
	for (size_t i = 0; i < c->nfiles; i++)
		free(c->files[i].path);
	free(c->files);
}

/* --- checksums --------------------------------------------------------------- */

/* Part of a member, or of a file without zip. */
struct piece {
	const struct zip_entry *e; /* NULL: no member */
	uint64_t at; /* in the file */
	uint64_t len;
	uint32_t crc;
};

struct summing {
	struct check_file *f;
	struct progress *progress;
	const struct source *src;
	struct piece *v; /* in the order of members */
	size_t n, cap;
	pthread_mutex_t lock; /* protects err, the first read error */
	struct errmsg err;
};

static bool add_piece(struct summing *s, const struct piece *p)
{
	if (s->n == s->cap) {
		const size_t cap = s->cap ? s->cap * 2 : 64;
		void *const grown = reallocarray(s->v, cap, sizeof(*s->v));

		if (!grown)
			return false;
		s->v = grown;
		s->cap = cap;
	}
	s->v[s->n++] = *p;
	return true;
}

static int add_range(struct summing *s, const struct zip_entry *e, uint64_t at,
		     uint64_t left)
{
	while (left) {
		const struct piece p = { .e = e, .at = at,
					 .len = left < PIECE_LEN ? left :
								   PIECE_LEN };

		if (!add_piece(s, &p))
			return errmsg_set(&s->err, -ENOMEM, "%s: out of memory",
					  s->f->path);
		at += p.len;
		left -= p.len;
	}
	return 0;
}

static int add_members(struct summing *s, const struct zip *z)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < z->n; i++) {
		uint64_t at;

		/* Those that cannot be located have been told about. */
		if (!zip_locate(z, &z->entries[i], &at, NULL))
			rc = add_range(s, &z->entries[i], at,
				       z->entries[i].size);
	}
	return rc;
}

static int read_piece(struct summing *s, struct piece *p, uint8_t *buf,
		      struct errmsg *err)
{
	for (uint64_t done = 0; done < p->len;) {
		const size_t n = p->len - done < READ_CHUNK ?
					 (size_t)(p->len - done) :
					 READ_CHUNK;
		const int rc = source_read(s->src, buf, n, p->at + done, err);

		if (rc)
			return rc;
		p->crc = libdeflate_crc32(p->crc, buf, n);
		done += n;
		progress_add(s->progress, n);
	}
	return 0;
}

static int sum_piece(void *ctx, size_t i)
{
	struct summing *const s = ctx;
	struct errmsg err = { "" };
	uint8_t *const buf = malloc(READ_CHUNK);
	const int rc = buf ? read_piece(s, &s->v[i], buf, &err) :
			     errmsg_set(&err, -ENOMEM, "%s: out of memory",
					s->f->path);

	free(buf);
	if (rc) {
		pthread_mutex_lock(&s->lock);
		if (!s->err.text[0])
			s->err = err;
		pthread_mutex_unlock(&s->lock);
	}
	return rc;
}

/* The pieces of a member follow one another. */
static void compare_sums(const struct summing *s)
{
	for (size_t i = 0; i < s->n;) {
		const struct zip_entry *const e = s->v[i].e;
		const uint64_t at = s->v[i].at;
		uint32_t crc = 0;
		struct errmsg err;

		for (; i < s->n && s->v[i].e == e; i++)
			crc = (uint32_t)crc32_combine(crc, s->v[i].crc,
						      (z_off_t)s->v[i].len);
		if (crc == e->crc)
			continue;
		errmsg_set(&err, 0, "%s: member %s: is damaged: the CRC-32 of"
			   " its %" PRIu64 " bytes at %" PRIu64 " is %08" PRIx32
			   ", written was %08" PRIx32, s->f->path, e->name,
			   e->size, at, crc, e->crc);
		if (!add_problem(s->f, err.text))
			return;
	}
}

static void sum_all(struct summing *s, const struct ptfile *pt, unsigned width)
{
	int rc = pt->is_zip ? add_members(s, &pt->zip) :
			      add_range(s, NULL, 0, pt->src.size);

	if (!rc)
		rc = parallel_for(s->n, width, sum_piece, s);
	if (rc)
		lines_add_new(&s->f->problems, s->err.text);
	else if (s->f->summed)
		compare_sums(s);
}

static unsigned files_at_once(const struct check *c)
{
	const unsigned width = parallel_width();

	return c->nfiles < width ? (unsigned)c->nfiles + !c->nfiles : width;
}

static int sum_file(void *ctx, size_t i)
{
	struct check *const c = ctx;
	struct summing s = { .f = &c->files[i], .progress = c->progress };
	struct errmsg err = { "" };
	struct ptfile pt;

	if (ptfile_open(&pt, s.f->path, &err)) {
		lines_add_new(&s.f->problems, err.text);
		return 0;
	}
	s.src = &pt.src;
	pthread_mutex_init(&s.lock, NULL);
	sum_all(&s, &pt, parallel_width() / files_at_once(c));
	pthread_mutex_destroy(&s.lock);
	free(s.v);
	ptfile_close(&pt);
	return 0;
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

void check_sums(struct check *c)
{
	parallel_for(c->nfiles, files_at_once(c), sum_file, c);
	for (size_t i = 0; i < c->nfiles; i++)
		note_without_sums(c, &c->files[i]);
	take_problems(c);
}
