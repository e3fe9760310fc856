/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks each file by itself: its object can be read, every member is where the
 * zip directory says, and with --data its bytes match the CRC-32 that was
 * written with them.  Torch's older container without zip holds no checksums;
 * --data shows only that its bytes can be read.
 *
 * The files are those in the directory, not those of the view, so that a
 * checkpoint with missing ranks is checked too.  Each file is opened once, and
 * memory holds the directories of one file per thread.  (Optimizer shards and
 * experts have been opened before by the view, which does not keep them open.)
 */
#include "ckpt/commands/check.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "ckpt/base/array.h"
#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/source.h"
#include "ckpt/commands/share.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/foreign/dcp.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/zip.h"
#include "ckpt/io/io.h"
#include "ckpt/io/shards.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/table/module_entries.h"
#include "ckpt/vfile/vfile.h"

/* At most this many damaged members of one file are listed. */
#define MEMBERS_MAX 20

/* Smaller tensors of two ranks may be equal by chance. */
#define CONTENT_LEAST 64

/* Add a file.  The path must be that of the directory that contains it. */
static int add_file(struct check *c, const char *dir, const char *name, struct errmsg *err)
{
	struct check_file *f = &c->files[c->nfiles++];
	struct fileid id = { 0 };
	char *where = NULL; /* path in the root that contains it */
	struct attrs a;
	int rc;

	if (asprintf(&f->path, "%s/%s", dir, name) < 0) {
		f->path = NULL;
		return errmsg_nomem(err, name);
	}
	f->id = names_parse(strrchr(f->path, '/') + 1);
	if (io_stat(c->report.u, f->path, 0, &a, &where, NULL) == 0 && S_ISREG(a.st.st_mode))
		fileid_from_stat(&a.st, &id);
	c->bytes += id.size;
	rc = shards_add(c->shards, where ? where : f->path, &id) < 0 ? errmsg_nomem(err, f->path)
								     : 0;
	free(where);
	return rc;
}

int check_list_files(struct check *c, struct errmsg *err)
{
	struct errmsg why = { "" };
	const bool dcp = dcp_with_records(c->report.c);
	const struct checkpoint *own = dcp_of(c->report.c) || c->report.choice == TAGS_WEIGHTS ? c->report.c : NULL;
	struct dirlist l = { 0 };
	int rc = 0;

	/* Opening the view reports problems of weights. */
	if (c->report.choice == TAGS_WEIGHTS && !own)
		return 0;
	if (!own && io_list(c->report.u, c->report.dir, 0, &l, &why)) {
		notes_add_new(&c->report.problems, why.text);
		return 0;
	}
	c->shards = shards_new(c->report.u);
	c->files = calloc((own ? own->nfiles : 0) + l.n + 1, sizeof(*c->files));
	if (!c->shards || !c->files)
		rc = errmsg_nomem(err, c->report.dir);
	/* For a distributed checkpoint the entries are checked instead of the files. */
	for (size_t i = 0; dcp && i < own->nfiles; i++)
		c->bytes += own->files[i].file.size;
	for (size_t i = 0; !rc && !dcp && own && i < own->nfiles; i++)
		rc = add_file(c, c->report.dir, own->files[i].name, err);
	for (size_t i = 0; !rc && i < l.n; i++)
		if (names_parse(l.v[i].name).kind != CKPT_FILE_OTHER)
			rc = add_file(c, l.dirs[l.v[i].dir], l.v[i].name, err);
	dirlist_done(&l);
	return rc;
}

/* Add a problem of one member.  Returns false once the list is full. */
static bool add_problem(struct check_file *f, const char *text)
{
	if (f->problems.n >= MEMBERS_MAX) {
		notes_add(&f->problems, "%s: more members are damaged (not listed)", f->path);
		return false;
	}
	notes_add_new(&f->problems, text);
	return true;
}

struct locating {
	const struct zip *z;
	uint64_t *at; /* offset of each entry's bytes; 0: unknown */
};

static int locate(void *ctx, size_t i, struct errmsg *ignored)
{
	struct locating *l = ctx;

	(void)ignored;
	if (zip_locate(l->z, &l->z->entries[i], &l->at[i], NULL))
		l->at[i] = 0;
	return 0;
}

/* Locate all members.  Their headers lie all over the file. */
static void locate_all(struct check_file *f, struct locating *l)
{
	const struct zip *z = l->z;
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

static int read_bytes(void *ctx, void *buf, size_t len, uint64_t off, struct errmsg *err)
{
	const struct reading *r = ctx;

	return source_read(r->src, buf, len, off, err) ?: progress_add(r->progress, len);
}

static void compare_sums(struct check_file *f, const struct zip_entry *const *e,
			 const struct crc_range *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct errmsg err;

		if (zip_check_sum(e[i], v[i].crc, v[i].off, f->path, &err) &&
		    !add_problem(f, err.text))
			return;
	}
}

static int compare_entries(const void *a, const void *b)
{
	const struct zip_entry *x = *(const struct zip_entry *const *)a;
	const struct zip_entry *y = *(const struct zip_entry *const *)b;

	return ORDER(x->header, y->header);
}

/* List members in the order of the file.  Skip members that could not be located, which have been
 * reported. */
static size_t list_members(const struct locating *l, const struct zip_entry **e, struct crc_range *v)
{
	const struct zip *z = l->z;
	size_t n = 0;

	for (size_t i = 0; i < z->n; i++)
		e[i] = &z->entries[i];
	qsort(e, z->n, sizeof(*e), compare_entries);
	for (size_t i = 0; i < z->n; i++) {
		v[n] = (struct crc_range){ .off = l->at[e[i] - z->entries], .len = e[i]->size };
		e[n] = e[i];
		if (v[n].len && v[n].off)
			n++;
	}
	assert(n <= z->n);
	return n;
}

/* Sum members of a file, which is reopened with read-ahead. */
static int sum_members(struct check *c, const struct check_file *f, struct crc_range *v, size_t n,
		       unsigned width, struct errmsg *err)
{
	struct vfile *file = vfile_new_copy(c->shards, (uint32_t)(f - c->files), err);
	struct source src;
	struct reading r = { &src, &c->progress };
	int rc = file ? vfile_source_open(&src, file, f->path, err) : -EIO;

	if (rc)
		return rc;
	vfile_source_expect(&src, n ? v[n - 1].off + v[n - 1].len : 0);
	rc = crc32_ranges(v, n, width, read_bytes, &r, err);
	source_close(&src);
	return rc;
}

/* -ENOMEM or -EINTR; other errors are problems of the file. */
static int sum_file(struct check *c, struct check_file *f, const struct ptfile *pt,
		    const struct locating *l, unsigned width)
{
	const size_t max = pt->is_zip ? pt->zip.n : 1;
	struct crc_range *v = calloc(max + 1, sizeof(*v));
	const struct zip_entry **e = calloc(max + 1, sizeof(*e));
	struct errmsg err = { "" };
	size_t n = 1;
	int rc = v && e ? 0 : -ENOMEM;

	if (!rc && pt->is_zip)
		n = list_members(l, e, v);
	else if (!rc)
		v[0].len = pt->src.size;
	if (!rc)
		rc = sum_members(c, f, v, n, width, &err);
	if (!rc && f->summed)
		compare_sums(f, e, v, n);
	free(v);
	free(e);
	if (rc == -ENOMEM || rc == -EINTR)
		return rc;
	if (rc)
		add_problem(f, err.text);
	return 0;
}

static bool is_safetensors(const struct check_file *f)
{
	return names_ends_with(f->path, ".safetensors");
}

/* Does the file belong to an earlier save of the tag? Its problems do not affect the newest
 * save. */
static bool is_left_over(const struct check *c, const struct check_file *f)
{
	const char *name = strrchr(f->path, '/') + 1;
	const struct checkpoint *r = c->report.c;
	size_t i = 0;

	if (!r || !r->left)
		return false;
	while (i < r->nfiles && strcmp(r->files[i].name, name) != 0)
		i++;
	return i == r->nfiles;
}

static void note_without_sums(struct check *c, const struct check_file *f)
{
	if (f->problems.n || f->summed || is_left_over(c, f))
		return;
	if (f->is_zip)
		notes_add(&c->report.notes,
			  "%s: has no checksums: they were disabled when it was written", f->path);
	else
		notes_add(&c->report.notes, "%s: has no checksums: %s does not store any", f->path,
			  is_safetensors(f) ? "safetensors" : "torch's container without zip");
}

static void check_facts(const struct check *c, struct check_file *f, const struct ptfile *pt)
{
	const enum ckpt_file_kind kind = f->id.kind;
	struct errmsg err;

	if (c->report.view && (kind == CKPT_FILE_MODEL || kind == CKPT_FILE_MODEL3) &&
	    c->report.c->ops->check_facts &&
	    c->report.c->ops->check_facts(c->report.c, f->path, pt->root, &err))
		notes_add_new(&f->problems, err.text);
}

/* Note the checksum of a buffer that has its own storage. */
static void add_buffer(struct check_file *f, const struct ptfile *pt, const char *name,
		       const struct tensor *t)
{
	const uint32_t crc = ptfile_storage_crc(pt, t->storage_key);

	if (!crc || t->numel != t->storage_numel)
		return;
	if (array_reserve(&f->buffers, &f->buffers_cap, f->nbuffers + 1, sizeof(*f->buffers)) &&
	    (name = strdup(name)))
		f->buffers[f->nbuffers++] = (struct check_buffer){ (char *)name, crc };
	else
		f->problems.failed = true;
}

/* Check that the tensors of a module lie in their storages: this is not checked elsewhere, since
 * views read neither the module's copy of a trained parameter nor the modules of data-parallel
 * ranks other than 0. */
static void check_module(struct check_file *f, const struct ptfile *pt)
{
	const struct value_dict *in = value_find_pairs(pt->root, "module") ?: value_pairs(pt->root);
	const bool each = f->id.kind == CKPT_FILE_MODEL3;
	struct arena a = { 0 };
	struct module_entries entries;

	module_entries_init(&entries, &a, pt->root, each ? in : NULL);
	for (size_t i = 0; in && i < in->n; i++) {
		const char *name = value_cstr(in->v[i].key);
		struct errmsg err;
		struct tensor t;
		uint64_t at;
		const int rc = tensor_is(in->v[i].val)
				       ? ptfile_tensor(pt, in->v[i].val, name, &t, &at, &err)
				       : -ENOTSUP;

		if (rc == -EBADMSG && !add_problem(f, err.text))
			break;
		if (!rc && each && module_entries_is_buffer(&entries, name))
			add_buffer(f, pt, name, &t);
	}
	if (f->nbuffers)
		qsort(f->buffers, f->nbuffers, sizeof(*f->buffers), array_by_text);
	f->problems.failed |= a.failed;
	arena_done(&a);
}

static const struct check_file *find_first_rank(const struct check *c, const struct check_file *f)
{
	for (size_t i = 0; f->nbuffers && i < c->nfiles; i++) {
		const struct ckname *id = &c->files[i].id;

		if (id->kind == f->id.kind && id->mp == f->id.mp && !id->dp)
			return &c->files[i];
	}
	return f;
}

static void warn_of_buffers(struct check *c, const struct check_file *f)
{
	const struct check_file *first = find_first_rank(c, f);

	for (size_t i = 0; i < f->nbuffers; i++) {
		const struct check_buffer *b = &f->buffers[i];
		const struct check_buffer *of_first = array_find(first->buffers, first->nbuffers,
								 sizeof(*of_first), b->name);
		struct errmsg text;

		if (!of_first || of_first->crc == b->crc)
			continue;
		errmsg_set(&text, 0,
			   "%s: buffer %s differs between data-parallel ranks: that of rank 0 is read",
			   c->report.dir, b->name);
		notes_add_new(&c->report.warnings, text.text);
	}
}

/* ZeRO-3's shards do not say which rank they are of, so that a copy of another rank's fits in. */
static uint64_t hash_content(const struct zip *z)
{
	uint64_t hash = 0;
	bool differs = false; /* from what every rank may have: padding, and steps */

	for (size_t i = 0; i < z->n; i++) {
		const struct zip_entry *e = &z->entries[i];

		hash = XXH3_64bits_withSeed(&e->crc, sizeof(e->crc), hash);
		differs |= strncmp(e->name, "data/", 5) == 0 && e->size >= CONTENT_LEAST &&
			   e->crc && e->crc != crc32_zeros(e->size);
	}
	return differs ? hash : 0;
}

static void warn_of_copy(struct check *c, const struct check_file *f)
{
	const struct check_file *of = c->files;
	struct errmsg text;

	while (of < f && (of->content != f->content || of->id.mp != f->id.mp))
		of++;
	if (!f->content || of == f)
		return;
	errmsg_set(&text, 0, "%s: has the same content as %s: a copy in place of a rank's own file?",
		   f->path, strrchr(of->path, '/') + 1);
	notes_add_new(&c->report.warnings, text.text);
}

static unsigned files_at_once(const struct check *c)
{
	const unsigned width = parallel_width();

	return c->nfiles < width ? (unsigned)c->nfiles + !c->nfiles : width;
}

static int check_file(void *ctx, size_t i, struct errmsg *err)
{
	struct check *c = ctx;
	struct check_file *f = &c->files[i];
	struct errmsg why = { "" };
	struct ptfile pt = { 0 };
	struct locating l = { .z = &pt.zip };
	int rc = 0;

	if (is_left_over(c, f))
		return 0;
	/* Opening the view has read the headers of safetensors. */
	if (is_safetensors(f) ? io_open(c->report.u, f->path, NULL, &pt.src, &why)
			      : io_open_pt(c->report.u, f->path, NULL, &pt, &why)) {
		notes_add_new(&f->problems, why.text);
		return 0;
	}
	f->is_zip = pt.is_zip;
	for (size_t k = 0; k < pt.zip.n; k++)
		f->summed |= pt.zip.entries[k].size && pt.zip.entries[k].crc;
	if (f->id.kind == CKPT_FILE_OPTIM)
		f->content = hash_content(&pt.zip);
	l.at = calloc(pt.zip.n + 1, sizeof(*l.at));
	if (l.at) {
		locate_all(f, &l);
		check_facts(c, f, &pt);
		check_module(f, &pt);
	}
	if (!l.at)
		rc = -ENOMEM;
	else if (f->mine)
		rc = sum_file(c, f, &pt, &l, parallel_width() / files_at_once(c));
	free(l.at);
	ptfile_close(&pt);
	return rc == -ENOMEM ? errmsg_nomem(err, f->path) : rc;
}

int check_choose_files(struct check *c, uint64_t *bytes, struct errmsg *err)
{
	uint64_t *sizes = calloc(c->nfiles + 1, sizeof(*sizes));
	bool *mine = calloc(c->nfiles + 1, sizeof(*mine));
	bool ok = sizes && mine;

	for (size_t i = 0; ok && i < c->nfiles; i++)
		sizes[i] = shards_id(c->shards, (uint32_t)i)->size;
	ok = ok && share_choose(c->share, sizes, c->nfiles, mine);
	for (size_t i = 0; ok && i < c->nfiles; i++) {
		c->files[i].mine = mine[i];
		*bytes += mine[i] ? sizes[i] : 0;
	}
	free(sizes);
	free(mine);
	return ok ? 0 : errmsg_nomem(err, c->report.dir);
}

int check_files(struct check *c, struct errmsg *err)
{
	/* A few files with read-ahead are enough. */
	const unsigned width = files_at_once(c);
	const int rc = c->data ? parallel_for(c->nfiles, width, check_file, c, err)
			       : parallel_steps(c->report.u, "checking files", parallel_far,
						c->nfiles, width, check_file, c, err);

	for (size_t i = 0; i < c->nfiles; i++) {
		if (c->files[i].mine)
			note_without_sums(c, &c->files[i]);
		warn_of_buffers(c, &c->files[i]);
		warn_of_copy(c, &c->files[i]);
		notes_take(&c->report.problems, &c->files[i].problems);
	}
	return rc;
}

void check_files_done(struct check *c)
{
	for (size_t i = 0; i < c->nfiles; i++) {
		for (size_t k = 0; k < c->files[i].nbuffers; k++)
			free(c->files[i].buffers[k].name);
		free(c->files[i].buffers);
		free(c->files[i].path);
	}
	free(c->files);
	shards_free(c->shards);
}
