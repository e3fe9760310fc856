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

/* Version 1: then a minor version, 16 bits of the header's length, and the header, a Python
 * dictionary. */
#define MAGIC "\x93NUMPY\1"
#define MAGIC_LEN 7
#define TEXT_AT (MAGIC_LEN + 3)
#define HEADER_MAX (TEXT_AT + 1024)
#define ELEMENTS_MAX (UINT64_C(1) << 32)

static int bad_array(const struct source *src, const char *what, struct errmsg *err)
{
	return errmsg_set(err, -EBADMSG, "%s: %s", src->name, what);
}

/* Find the table in an array of integers with `columns` columns, from its header. */
static int place_array(struct tokens_table *t, unsigned columns, struct errmsg *err)
{
	const struct source *const src = t->src;
	const size_t n = src->size < HEADER_MAX ? src->size : HEADER_MAX;
	uint8_t head[HEADER_MAX + 1];
	const char *const text = (const char *)head + TEXT_AT;
	uint64_t len;
	const int rc = source_read(src, head, n, 0, err);

	if (rc)
		return rc;
	if (n < TEXT_AT || memcmp(head, MAGIC, MAGIC_LEN) != 0)
		return bad_array(src, "is not an array of NumPy, version 1", err);
	t->at = TEXT_AT + get_le16(head + MAGIC_LEN + 1);
	if (t->at > n)
		return bad_array(src, "has too long a header", err);
	head[t->at] = '\0';
	if (strstr(text, "'fortran_order': True") || !strstr(text, columns == 1 ? ",)" : ", 2)"))
		return bad_array(src, "has another shape than expected", err);
	if (strstr(text, "'<i8'"))
		t->width = 8;
	else if (strstr(text, "'<i4'") || strstr(text, "'<u4'"))
		t->width = 4;
	else
		return bad_array(src, "has no integers of 4 or 8 bytes", err);
	len = src->size - t->at;
	if (len > ELEMENTS_MAX * t->width || len % (t->width * columns))
		return bad_array(src, "is cut off, or too large", err);
	t->end = src->size;
	return 0;
}

/* Read a whole array.  Negative numbers are read as huge ones, which later checks reject. */
static int read_array(struct tokens_array *a, const char *path, unsigned columns,
		      struct errmsg *err)
{
	struct source src;
	struct tokens_table t = { .src = &src };
	uint64_t n = 0;
	int rc = source_open(&src, path, err);

	if (rc)
		return rc;
	rc = place_array(&t, columns, err);
	if (!rc) {
		n = (t.end - t.at) / t.width;
		a->rows = n / columns;
		a->v = malloc((n + 1) * sizeof(*a->v));
		rc = a->v ? 0 : errmsg_nomem(err, path);
	}
	for (uint64_t i = 0; !rc && i < n; i++)
		rc = tokens_table_next(&t, &a->v[i], err);
	source_close(&src);
	return rc;
}

static int read_named(struct tokens_array *a, const char *prefix, const char *name,
		      unsigned columns, struct errmsg *err)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s_%s_idx.npy", prefix, name) < 0)
		return errmsg_nomem(err, prefix);
	rc = read_array(a, path, columns, err);
	free(path);
	return rc;
}

int tokens_samples_open(struct tokens_samples *s, const char *prefix, struct errmsg *err)
{
	int rc;

	*s = (struct tokens_samples){ .prefix = prefix };
	rc = read_named(&s->documents, prefix, "doc", 1, err)
			     ?: read_named(&s->starts, prefix, "sample", 2, err)
			     ?: read_named(&s->order, prefix, "shuffle", 1, err);
	if (!rc && (!s->order.rows || s->order.rows >= s->starts.rows))
		rc = errmsg_set(err, -EBADMSG,
				"%s: its arrays have %llu samples and %llu starts of samples",
				prefix, (unsigned long long)s->order.rows,
				(unsigned long long)s->starts.rows);
	return rc;
}

void tokens_samples_close(struct tokens_samples *s)
{
	free(s->documents.v);
	free(s->starts.v);
	free(s->order.v);
}

/* Return the sequence at place `at` in the order of documents, or NULL. */
static const struct tokens_run *document(const struct tokens_samples *s,
					 const struct tokens_file *f, uint64_t at)
{
	return at < s->documents.rows && s->documents.v[at] < f->nruns
		       ? &f->runs[s->documents.v[at]]
		       : NULL;
}

int tokens_samples_read(const struct tokens_samples *s, const struct tokens_file *f, uint64_t row,
			size_t n, int32_t *out, struct errmsg *err)
{
	const uint64_t sample = s->order.v[row];
	const uint64_t *from, *to;
	size_t got = 0;
	int rc = 0;

	if (sample >= s->order.rows)
		goto bad;
	from = s->starts.v + 2 * sample;
	to = from + 2;
	for (uint64_t at = from[0]; at <= to[0] && !rc; at++) {
		const struct tokens_run *const run = document(s, f, at);
		const uint64_t len = run ? run[1].token - run->token : 0;
		const uint64_t begin = at == from[0] ? from[1] : 0;
		const uint64_t end = at == to[0] ? to[1] + 1 : len;

		if (!run || begin > end || end > len || end - begin > n - got)
			goto bad;
		rc = tokens_file_read(f, run->token + begin, end - begin, out + got, err);
		got += end - begin;
	}
	if (rc || got == n)
		return rc;
bad:
	return errmsg_set(err, -EBADMSG, "%s: sample %llu is not %zu tokens of the data", s->prefix,
			  (unsigned long long)row, n);
}
