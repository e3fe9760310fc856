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

/* Find the table in an array of integers with `columns` in a row, by its header. */
static int place_array(struct tokens_table *t, const char *header,
		       unsigned columns, struct errmsg *err)
{
	const uint64_t len = t->src->size - t->at;

	if (strstr(header, "'fortran_order': True") ||
	    !strstr(header, columns == 1 ? ",)" : ", 2)"))
		return bad_array(t->src, "has another shape than expected", err);
	if (strstr(header, "'<i8'"))
		t->width = 8;
	else if (strstr(header, "'<i4'") || strstr(header, "'<u4'"))
		t->width = 4;
	else
		return bad_array(t->src, "has no integers of 4 or 8 bytes", err);
	if (len > ELEMENTS_MAX * t->width || len % (t->width * columns))
		return bad_array(t->src, "is cut off, or too large", err);
	t->end = t->src->size;
	return 0;
}

/* Read a whole array.  Negative numbers become too large for any use. */
static int read_array(const char *path, unsigned columns, uint64_t **out,
		      uint64_t *rows, struct errmsg *err)
{
	char header[HEADER_MAX + 1];
	struct source src;
	struct tokens_table t = { .src = &src };
	uint64_t n = 0;
	int rc = source_open(&src, path, err);

	if (rc)
		return rc;
	rc = read_header(&src, header, &t.at, err);
	if (!rc)
		rc = place_array(&t, header, columns, err);
	if (!rc) {
		n = (t.end - t.at) / t.width;
		*out = malloc((n + 1) * sizeof(**out));
		rc = *out ? 0 : errmsg_nomem(err, path);
	}
	for (uint64_t i = 0; !rc && i < n; i++)
		rc = tokens_table_next(&t, &(*out)[i], err);
	*rows = n / columns;
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
			struct errmsg *err)
{
	uint64_t starts = 0;
	int rc;

	*s = (struct tokens_samples){ .prefix = prefix };
	rc = read_named(prefix, "doc", 1, &s->documents, &s->ndocuments, err);
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
	return rc;
}

void tokens_samples_close(struct tokens_samples *s)
{
	free(s->documents);
	free(s->starts);
	free(s->order);
}

/* The sequence at the place `at` in the order of documents, or NULL. */
static const struct tokens_run *document(const struct tokens_samples *s,
					 const struct tokens_file *f,
					 uint64_t at)
{
	return at < s->ndocuments && s->documents[at] < f->nruns
		       ? &f->runs[s->documents[at]]
		       : NULL;
}

int tokens_samples_read(const struct tokens_samples *s,
			const struct tokens_file *f, uint64_t row, size_t n,
			int32_t *out, struct errmsg *err)
{
	const uint64_t sample = s->order[row];
	const uint64_t *from, *to;
	size_t got = 0;
	int rc = 0;

	if (sample >= s->n)
		goto bad;
	from = s->starts + 2 * sample;
	to = from + 2;
	for (uint64_t at = from[0]; at <= to[0] && !rc; at++) {
		const struct tokens_run *const run = document(s, f, at);
		const uint64_t len = run ? run[1].token - run->token : 0;
		const uint64_t begin = at == from[0] ? from[1] : 0;
		const uint64_t end = at == to[0] ? to[1] + 1 : len;

		if (!run || begin > end || end > len || end - begin > n - got)
			goto bad;
		rc = tokens_file_read(f, run->token + begin, end - begin,
				      out + got, err);
		got += end - begin;
	}
	if (rc || got == n)
		return rc;
bad:
	return errmsg_set(err, -EBADMSG,
			  "%s: sample %llu is not %zu tokens of the data",
			  s->prefix, (unsigned long long)row, n);
}
