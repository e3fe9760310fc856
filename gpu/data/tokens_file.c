/* SPDX-License-Identifier: Apache-2.0 */
/* Files are read, not mapped: a truncated file must cause an error, not a SIGBUS. */
#include "gpu/data/tokens_impl.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"

#define CHUNK 8192 /* bytes */

/* Open PATH SUFFIX. */
static int open_path(struct tokens_file *f, const char *path, const char *suffix,
		     struct errmsg *err)
{
	*f = (struct tokens_file){ .source.fd = -1 };
	if (asprintf(&f->path, "%s%s", path, suffix) < 0) {
		f->path = NULL;
		return errmsg_nomem(err, path);
	}
	return source_open(&f->source, f->path, err);
}

int tokens_file_open(struct tokens_file *f, const char *path, unsigned width, bool is_signed,
		     struct errmsg *err)
{
	const int rc = open_path(f, path, "", err);

	if (rc)
		return rc;
	if (f->source.size % width)
		return errmsg_set(err, -EBADMSG,
				  "%s: its %llu bytes are not a multiple of a token's %u", path,
				  (unsigned long long)f->source.size, width);
	f->width = width;
	f->is_signed = is_signed;
	f->nruns = 1;
	f->runs = calloc(2, sizeof(*f->runs));
	if (!f->runs)
		return errmsg_nomem(err, path);
	f->runs[1].token = f->source.size / width;
	return 0;
}

int tokens_file_open_indexed(struct tokens_file *f, const char *prefix, bool separate,
			     struct errmsg *err)
{
	struct tokens_file idx;
	int rc = open_path(f, prefix, ".bin", err);

	if (rc)
		return rc;
	f->separate = separate;
	rc = open_path(&idx, prefix, ".idx", err);
	if (!rc)
		rc = tokens_index_read(f, &idx.source, f->source.size, err);
	tokens_file_close(&idx);
	return rc;
}

void tokens_file_close(struct tokens_file *f)
{
	if (!f->path)
		return;
	source_close(&f->source);
	free(f->runs);
	free(f->path);
	*f = (struct tokens_file){ 0 };
}

static int32_t decode(const struct tokens_file *f, const uint8_t *p)
{
	const bool negative = f->is_signed && p[f->width - 1] & 0x80;
	uint64_t v = 0;

	for (unsigned i = f->width; i-- > 0;)
		v = v << 8 | p[i];
	return negative || v > INT32_MAX ? -1 : (int32_t)v;
}

static int read_run(const struct tokens_file *f, uint64_t at, size_t n, int32_t *out,
		    struct errmsg *err)
{
	uint8_t buf[CHUNK];

	while (n) {
		const size_t part = n < CHUNK / f->width ? n : CHUNK / f->width;
		const int rc = source_read(&f->source, buf, part * f->width, at, err);

		if (rc)
			return rc;
		for (size_t i = 0; i < part; i++)
			out[i] = decode(f, buf + i * f->width);
		at += part * f->width;
		out += part;
		n -= part;
	}
	return 0;
}

int tokens_file_read(const struct tokens_file *f, uint64_t first, size_t n, int32_t *out,
		     struct errmsg *err)
{
	const struct tokens_run *run =
		f->runs + interval_find(&f->runs->token, f->nruns, sizeof(*f->runs), first);

	assert(first + n <= f->runs[f->nruns].token);
	for (; n; run++) {
		const uint64_t skip = first - run->token;
		const uint64_t rest = run[1].token - first;
		const size_t part = n < rest ? n : (size_t)rest;
		const int rc = read_run(f, run->at + skip * f->width, part, out, err);

		if (rc)
			return rc;
		first += part;
		out += part;
		n -= part;
	}
	return 0;
}
