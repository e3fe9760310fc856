/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of Megatron's indexed dataset (megatron/core/datasets/
 * indexed_dataset.py), version 1, little-endian:
 *
 *     9 bytes  "MMIDIDX\0\0"
 *     u64      version
 *     u8       code of the token type
 *     u64      n, number of sequences
 *     u64      d, number of document boundaries
 *     i32[n]   length of each sequence, in tokens
 *     i64[n]   offset of each sequence in the .bin file, in bytes
 *     i64[d]   first sequence of each document, and n
 *     i8[n]    modes, of multimodal data; mostly absent
 *
 * Sequences mostly follow each other in the .bin file without gaps, so that a
 * large index reduces to one run.
 */
#include "gpu/data/tokens_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"

#define MAGIC "MMIDIDX\0"
#define MAGIC_LEN 9
#define HEADER_LEN (MAGIC_LEN + 8 + 1 + 8 + 8)
#define RUNS_MAX (1u << 24) /* 256 MiB of them */

static const struct {
	uint8_t width; /* 0: not an integer type */
	bool is_signed;
	const char *name;
} types[] = {
	[1] = { 1, false, "uint8" },  [2] = { 1, true, "int8" },
	[3] = { 2, true, "int16" },   [4] = { 4, true, "int32" },
	[5] = { 8, true, "int64" },   [6] = { 0, true, "float64" },
	[7] = { 0, true, "float32" }, [8] = { 2, false, "uint16" },
};

struct index {
	const struct source *src;
	uint64_t sequences, boundaries;
	struct tokens_table lengths, pointers, documents;
};

int tokens_table_next(struct tokens_table *t, uint64_t *out, struct errmsg *err)
{
	const uint8_t *p = t->buf + t->used;

	if (t->used == t->len) {
		const uint64_t left = t->end - t->at;
		int rc;

		p = t->buf;
		t->used = 0;
		t->len = left < sizeof(t->buf) ? (size_t)left : sizeof(t->buf);
		rc = source_read(t->src, t->buf, t->len, t->at, err);
		if (rc)
			return rc;
		t->at += t->len;
	}
	*out = t->width == 8 ? get_le64(p) : get_le32(p);
	t->used += t->width;
	return 0;
}

static int bad_index(const struct source *src, const char *what,
		     struct errmsg *err)
{
	return errmsg_set(err, -EBADMSG, "%s: %s", src->name, what);
}

static int read_type(struct tokens_file *f, const struct source *src,
		     unsigned code, struct errmsg *err)
{
	if (code == 0 || code >= COUNT(types))
		return errmsg_set(err, -EBADMSG, "%s: unknown token type %u",
				  src->name, code);
	if (!types[code].width)
		return errmsg_set(err, -EBADMSG,
				  "%s: its tokens are %s; integers are expected",
				  src->name, types[code].name);
	f->width = types[code].width;
	f->is_signed = types[code].is_signed;
	return 0;
}

/* A table of `n` integers that begins at *end, which becomes its end. */
static struct tokens_table place_table(const struct index *x, uint64_t *end,
				       uint64_t n, unsigned width)
{
	const uint64_t at = *end;

	*end = at + n * width;
	return (struct tokens_table){
		.src = x->src, .at = at, .end = *end, .width = width
	};
}

/* Locate the tables, which end with the file. */
static int place_tables(struct index *x, struct errmsg *err)
{
	const uint64_t n = x->sequences, size = x->src->size;
	uint64_t end = HEADER_LEN;

	/* Counts that pass this check cannot overflow later products. */
	if (n <= size / 12 && x->boundaries <= size / 8) {
		x->lengths = place_table(x, &end, n, 4);
		x->pointers = place_table(x, &end, n, 8);
		x->documents = place_table(x, &end, x->boundaries, 8);
	} else {
		end = UINT64_MAX;
	}
	if (end > size)
		return bad_index(x->src,
				 "is too short for the tables in its header",
				 err);
	if (end != size && end + n != size)
		return bad_index(
			x->src, "is longer than the tables in its header", err);
	return 0;
}

static int tokens_index_read_header(struct tokens_file *f, struct index *x,
				    struct errmsg *err)
{
	uint8_t h[HEADER_LEN];
	int rc;

	if (x->src->size < HEADER_LEN)
		return bad_index(
			x->src,
			"is shorter than the header of an indexed dataset", err);
	rc = source_read(x->src, h, sizeof(h), 0, err);
	if (rc)
		return rc;
	if (memcmp(h, MAGIC, MAGIC_LEN) != 0)
		return bad_index(x->src,
				 "is not the index of an indexed dataset", err);
	if (get_le64(h + MAGIC_LEN) != 1)
		return errmsg_set(
			err, -EBADMSG,
			"%s: unknown version %llu of an indexed dataset",
			x->src->name,
			(unsigned long long)get_le64(h + MAGIC_LEN));
	x->sequences = get_le64(h + MAGIC_LEN + 9);
	x->boundaries = get_le64(h + MAGIC_LEN + 17);
	rc = read_type(f, x->src, h[MAGIC_LEN + 8], err);
	return rc ? rc : place_tables(x, err);
}

/* Boundaries must ascend from 0 to n. */
static int check_documents(struct index *x, struct errmsg *err)
{
	uint64_t last = 0;

	for (uint64_t i = 0; i < x->boundaries; i++) {
		uint64_t at;
		const int rc = tokens_table_next(&x->documents, &at, err);

		if (rc)
			return rc;
		if (at < last || at > x->sequences || (i == 0 && at))
			return errmsg_set(
				err, -EBADMSG,
				"%s: document boundary %llu is out of order",
				x->src->name, (unsigned long long)i);
		last = at;
	}
	if (last != x->sequences)
		return bad_index(
			x->src, "its documents do not cover all sequences", err);
	return 0;
}

static int tokens_index_grow(struct tokens_file *f, size_t *cap,
			     const char *name, struct errmsg *err)
{
	if (f->nruns >= RUNS_MAX)
		return errmsg_set(err, -EFBIG,
				  "%s: its sequences lie in more than %u places",
				  name, RUNS_MAX);
	return array_reserve(&f->runs, cap, f->nruns + 2, sizeof(*f->runs))
		       ? 0
		       : errmsg_nomem(err, name);
}

/* Append `len` tokens at byte `at`.  The entry after the last run is the end
 * mark. */
static int tokens_index_add_run(struct tokens_file *f, size_t *cap,
				const struct index *x, uint64_t at,
				uint64_t len, struct errmsg *err)
{
	struct tokens_run *end;
	const int rc = tokens_index_grow(f, cap, x->src->name, err);

	if (rc)
		return rc;
	end = &f->runs[f->nruns];
	if (f->nruns == 0 || end->at != at) {
		/* Start a new run. */
		const uint64_t token = f->nruns ? end->token : 0;

		*end = (struct tokens_run){ token, at };
		end = &f->runs[++f->nruns];
		end->token = token;
	}
	end->token += len;
	end->at = at + len * f->width;
	return 0;
}

static int add_sequence(struct tokens_file *f, size_t *cap, struct index *x,
			uint64_t i, uint64_t bin_size, struct errmsg *err)
{
	uint64_t len, at;
	int rc = tokens_table_next(&x->lengths, &len, err);

	if (!rc)
		rc = tokens_table_next(&x->pointers, &at, err);
	if (rc)
		return rc;
	if (len > INT32_MAX || !checked_range(at, len * f->width, bin_size))
		return errmsg_set(
			err, -EBADMSG,
			"%s: sequence %llu, %d tokens at byte %lld, is not within the %llu bytes"
			" of data",
			x->src->name, (unsigned long long)i, (int)(int32_t)len,
			(long long)at, (unsigned long long)bin_size);
	if (f->starts)
		f->starts[i + 1] = f->starts[i] + len;
	return len ? tokens_index_add_run(f, cap, x, at, len, err) : 0;
}

static int read_sequences(struct tokens_file *f, struct index *x,
			  uint64_t bin_size, struct errmsg *err)
{
	size_t cap = 0;
	int rc = tokens_index_grow(f, &cap, x->src->name, err);

	if (!rc)
		f->runs[0] = (struct tokens_run){ 0, 0 };
	f->nsequences = x->sequences;
	if (f->has_starts)
		f->starts = calloc(x->sequences + 1, sizeof(*f->starts));
	if (!rc && f->has_starts && !f->starts)
		rc = errmsg_nomem(err, x->src->name);
	for (uint64_t i = 0; !rc && i < x->sequences; i++)
		rc = add_sequence(f, &cap, x, i, bin_size, err);
	return rc;
}

int tokens_index_read(struct tokens_file *f, const struct source *idx,
		      uint64_t bin_size, struct errmsg *err)
{
	struct index x = { .src = idx };
	int rc = tokens_index_read_header(f, &x, err);

	if (!rc)
		rc = check_documents(&x, err);
	if (!rc)
		rc = read_sequences(f, &x, bin_size, err);
	if (rc) {
		free(f->runs);
		free(f->starts);
		f->runs = NULL;
		f->starts = NULL;
		f->nruns = 0;
	}
	return rc;
}
