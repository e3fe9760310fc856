/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The samples of a GPT data set as Megatron has cut and shuffled them
 * (megatron/data/gpt_dataset.py), in three arrays of NumPy:
 *
 *     PREFIX_doc_idx.npy      int[d]     documents in the order of their use
 *     PREFIX_sample_idx.npy   int[n][2]  where samples start: a place in the order,
 *                                        and a token of that document
 *     PREFIX_shuffle_idx.npy  int[n]     samples in the order of training
 *
 * A sample ends with the first token of the next one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "gpu/data/tokens_impl.h"

#define MAGIC "\x93NUMPY"
#define MAGIC_LEN 6
#define HEADER_MAX 1024
#define ELEMENTS_MAX (UINT64_C(1) << 32)

static int bad_array(const struct source *src, const char *what,
		     struct errmsg *err)
{
	return errmsg_set(err, -EBADMSG, "%s: %s", src->name, what);
}

/* Read the header's text.  The array starts at *at. */
static int read_header(const struct source *src, char text[HEADER_MAX + 1],
		       uint64_t *at, struct errmsg *err)
{
	uint8_t head[MAGIC_LEN + 4];
	uint64_t len;
	int rc;

	if (src->size < sizeof(head))
		return bad_array(src, "is not an array of NumPy", err);
	rc = source_read(src, head, sizeof(head), 0, err);
	if (rc)
		return rc;
	if (memcmp(head, MAGIC, MAGIC_LEN) != 0 || head[MAGIC_LEN] != 1)
		return bad_array(src, "is not an array of NumPy, version 1",
				 err);
	len = get_le16(head + MAGIC_LEN + 2);
	if (len > HEADER_MAX)
		return bad_array(src, "has too long a header", err);
	rc = source_read(src, text, len, sizeof(head), err);
	text[len] = '\0';
	*at = sizeof(head) + len;
	return rc;
}

static uint64_t element(const uint8_t *p, unsigned width)
{
	return width == 8 ? get_le64(p) : get_le32(p);
}

/* Read a whole array of integers with `columns` in a row.  Negative ones become too
 * large for any use. */
static int read_array(const char *path, unsigned columns, uint64_t **out,
		      uint64_t *rows, struct errmsg *err)
{
	char header[HEADER_MAX + 1];
	struct source src;
	uint64_t at = 0, n;
	unsigned width;
	uint8_t *bytes = NULL;
	int rc = source_open(&src, path, err);

	if (rc)
		return rc;
	rc = read_header(&src, header, &at, err);
	if (!rc && (strstr(header, "'fortran_order': True") ||
		    !strstr(header, columns == 1 ? ",)" : ", 2)")))
		rc = bad_array(&src, "has another shape than expected", err);
	width = strstr(header, "'<i8'")                              ? 8
		: strstr(header, "'<i4'") || strstr(header, "'<u4'") ? 4
								     : 0;
	if (!rc && !width)
		rc = bad_array(&src, "has no integers of 4 or 8 bytes", err);
	n = rc ? 0 : (src.size - at) / width;
	if (!rc &&
	    (n > ELEMENTS_MAX || n % columns || n * width != src.size - at))
		rc = bad_array(&src, "is cut off, or too large", err);
	if (!rc) {
		bytes = malloc(n * width + 1);
		*out = malloc((n + 1) * sizeof(**out));
		rc = bytes && *out ? source_read(&src, bytes, n * width, at, err)
				   : errmsg_nomem(err, path);
	}
	for (uint64_t i = 0; !rc && i < n; i++)
		(*out)[i] = element(bytes + i * width, width);
	*rows = n / columns;
	free(bytes);
	source_close(&src);
	return rc;
}

static int read_named(const char *prefix, const char *name, unsigned columns,
		      uint64_t **out, uint64_t *rows, struct errmsg *err)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s_%s_idx.npy", prefix, name) < 0)
		return errmsg_nomem(err, prefix);
	rc = read_array(path, columns, out, rows, err);
	free(path);
	return rc;
}

int tokens_samples_open(struct tokens_samples *s, const char *prefix,
			const char *data, struct errmsg *err)
{
	uint64_t starts = 0;
	int rc;

	*s = (struct tokens_samples){ .prefix = prefix };
	rc = tokens_index_starts(data, &s->sequences, &s->nsequences, err);
	if (!rc)
		rc = read_named(prefix, "doc", 1, &s->documents, &s->ndocuments,
				err);
	if (!rc)
		rc = read_named(prefix, "sample", 2, &s->starts, &starts, err);
	if (!rc)
		rc = read_named(prefix, "shuffle", 1, &s->order, &s->n, err);
	if (!rc && (!s->n || s->n >= starts))
		rc = errmsg_set(
			err, -EBADMSG,
			"%s: its arrays have %llu samples and %llu starts of samples",
			prefix, (unsigned long long)s->n,
			(unsigned long long)starts);
	if (rc)
		tokens_samples_close(s);
	return rc;
}

void tokens_samples_close(struct tokens_samples *s)
{
	free(s->sequences);
	free(s->documents);
	free(s->starts);
	free(s->order);
	*s = (struct tokens_samples){ 0 };
}

/* The tokens [*first, *end) of the place `at` in the order of documents. */
static bool document(const struct tokens_samples *s, uint64_t at,
		     uint64_t *first, uint64_t *end)
{
	if (at >= s->ndocuments || s->documents[at] >= s->nsequences)
		return false;
	*first = s->sequences[s->documents[at]];
	*end = s->sequences[s->documents[at] + 1];
	return true;
}

int tokens_samples_read(const struct tokens_samples *s,
			const struct tokens_file *f, uint64_t row, size_t n,
			int32_t *out, struct errmsg *err)
{
	const uint64_t sample = s->order[row];
	const uint64_t *from, *to;
	uint64_t first, end;
	size_t got = 0;
	int rc = 0;

	if (sample >= s->n)
		goto bad;
	from = s->starts + 2 * sample;
	to = from + 2;
	for (uint64_t at = from[0]; at <= to[0] && !rc; at++) {
		uint64_t begin, len;

		if (!document(s, at, &first, &end))
			goto bad;
		begin = at == from[0] ? from[1] : 0;
		len = at == to[0] ? to[1] + 1 : end - first;
		if (begin > len || len > end - first || len - begin > n - got)
			goto bad;
		rc = tokens_file_read(f, first + begin, len - begin, out + got,
				      err);
		got += len - begin;
	}
	if (rc || got == n)
		return rc;
bad:
	return errmsg_set(err, -EBADMSG,
			  "%s: sample %llu is not %zu tokens of the data",
			  s->prefix, (unsigned long long)row, n);
}
