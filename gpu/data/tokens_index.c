/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of Megatron's indexed dataset (megatron/core/datasets/ indexed_dataset.py), version
 * 1, little-endian:
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
 * Sequences mostly follow each other in the .bin file without gaps, so that a large index reduces
 * to one run.
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
#define RUNS_MAX (1u << 24) /* 256 MiB of runs */

static const struct {
	uint8_t width; /* 0: not an integer type */
	bool is_signed;
	const char *name;
} types[] = {
	[1] = { 1, false, "uint8" },  [2] = { 1, true, "int8" },    [3] = { 2, true, "int16" },
	[4] = { 4, true, "int32" },   [5] = { 8, true, "int64" },   [6] = { 0, true, "float64" },
	[7] = { 0, true, "float32" }, [8] = { 2, false, "uint16" },
};

struct index {
	const char *file; /* like `err`, for messages */
	struct errmsg *err;
	const struct source *src;
	struct tokens_file *f;
	uint64_t sequences, boundaries, bin_size;
	struct tokens_table lengths, pointers, documents;
	size_t cap; /* capacity of f->runs */
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

static int read_type(const struct index *x, unsigned code)
{
	if (code == 0 || code >= COUNT(types))
		return ERRMSG_FILE(x, -EBADMSG, "unknown token type %u", code);
	if (!types[code].width)
		return ERRMSG_FILE(x, -EBADMSG, "its tokens are %s; integers are expected",
				   types[code].name);
	x->f->width = types[code].width;
	x->f->is_signed = types[code].is_signed;
	return 0;
}

/* Return the table of `n` integers that begins at *end, and advance *end past it. */
static struct tokens_table place_table(const struct index *x, uint64_t *end, uint64_t n,
				       unsigned width)
{
	const uint64_t at = *end;

	*end = at + n * width;
	return (struct tokens_table){ .src = x->src, .at = at, .end = *end, .width = width };
}

/* Locate the tables, the last of which ends with the file. */
static int place_tables(struct index *x)
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
		return ERRMSG_FILE(x, -EBADMSG, "is too short for the tables in its header");
	if (end != size && end + n != size)
		return ERRMSG_FILE(x, -EBADMSG, "is longer than the tables in its header");
	return 0;
}

static int tokens_index_read_header(struct index *x)
{
	uint8_t h[HEADER_LEN];
	int rc;

	if (x->src->size < HEADER_LEN)
		return ERRMSG_FILE(x, -EBADMSG, "is shorter than the header of an indexed dataset");
	rc = source_read(x->src, h, sizeof(h), 0, x->err);
	if (rc)
		return rc;
	if (memcmp(h, MAGIC, MAGIC_LEN) != 0)
		return ERRMSG_FILE(x, -EBADMSG, "is not the index of an indexed dataset");
	if (get_le64(h + MAGIC_LEN) != 1)
		return ERRMSG_FILE(x, -EBADMSG, "unknown version %llu of an indexed dataset",
				   (unsigned long long)get_le64(h + MAGIC_LEN));
	x->sequences = get_le64(h + MAGIC_LEN + 9);
	x->boundaries = get_le64(h + MAGIC_LEN + 17);
	return read_type(x, h[MAGIC_LEN + 8]) ?: place_tables(x);
}

/* Boundaries must ascend from 0 to n. */
static int check_documents(struct index *x)
{
	uint64_t last = 0;

	for (uint64_t i = 0; i < x->boundaries; i++) {
		uint64_t at;
		const int rc = tokens_table_next(&x->documents, &at, x->err);

		if (rc)
			return rc;
		if (at < last || at > x->sequences || (i == 0 && at))
			return ERRMSG_FILE(x, -EBADMSG, "document boundary %llu is out of order",
					   (unsigned long long)i);
		last = at;
	}
	if (last != x->sequences)
		return ERRMSG_FILE(x, -EBADMSG, "its documents do not cover all sequences");
	return 0;
}

/* Append `len` tokens at byte `at`.  The entry after the last run is the end mark. */
static int tokens_index_add_run(struct index *x, uint64_t at, uint64_t len)
{
	struct tokens_file *const f = x->f;
	struct tokens_run *end;

	if (f->nruns >= RUNS_MAX && !f->separate)
		return ERRMSG_FILE(x, -EFBIG, "its sequences lie in more than %u places", RUNS_MAX);
	if (!array_reserve(&f->runs, &x->cap, f->nruns + 2, sizeof(*f->runs)))
		return errmsg_nomem(x->err, x->file);
	end = &f->runs[f->nruns];
	if (f->nruns == 0 || f->separate || end->at != at) {
		end->at = at;
		end[1].token = end->token;
		end++;
		f->nruns++;
	}
	end->token += len;
	end->at = at + len * f->width;
	return 0;
}

static int add_sequence(struct index *x, uint64_t i)
{
	const struct tokens_file *const f = x->f;
	uint64_t len, at;
	int rc = tokens_table_next(&x->lengths, &len, x->err)
			     ?: tokens_table_next(&x->pointers, &at, x->err);

	if (rc)
		return rc;
	if (len > INT32_MAX || !checked_range(at, len * f->width, x->bin_size))
		return ERRMSG_FILE(x, -EBADMSG,
			"sequence %llu, %d tokens at byte %lld, is not within the %llu bytes of data",
			(unsigned long long)i, (int)(int32_t)len, (long long)at,
			(unsigned long long)x->bin_size);
	return len || f->separate ? tokens_index_add_run(x, at, len) : 0;
}

int tokens_index_read(struct tokens_file *f, const struct source *idx, uint64_t bin_size,
		      struct errmsg *err)
{
	struct index x = {
		.file = idx->name, .err = err, .src = idx, .f = f, .bin_size = bin_size, .cap = 1
	};
	int rc = tokens_index_read_header(&x) ?: check_documents(&x);

	f->runs = calloc(x.cap, sizeof(*f->runs));
	if (!rc && !f->runs)
		rc = errmsg_nomem(err, x.file);
	for (uint64_t i = 0; !rc && i < x.sequences; i++)
		rc = add_sequence(&x, i);
	return rc;
}
