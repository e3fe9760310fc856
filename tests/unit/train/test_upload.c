/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uploads arrive completely, with device memory apart from or shared with the host; read errors
 * have source_read's messages; an upload freed early leaves nothing behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/cast.h"
#include "gpu/backend/backend.h"
#include "gpu/read/pagecache.h"
#include "gpu/read/upload.h"
#include "tests/support/apart.h"
#include "tests/support/openfiles.h"
#include "tests/support/unit.h"

/* Several whole pieces and a partial one. */
#define FILE_BYTES ((size_t)20 << 20)
#define FILE_NAME "upload.tmp"

static uint8_t *content;

static struct backend *cpu(void)
{
	static struct backend *b;

	if (!b)
		assert_int_equal(backend_cpu_new(&b, DTYPE_F32, 1, NULL), 0);
	return b;
}

static struct backend *apart(void)
{
	return apart_backend(DTYPE_F32);
}

static struct backend *(*const devices[])(void) = { cpu, apart };

static int make_file(void **state)
{
	FILE *f = fopen(FILE_NAME, "w");

	content = content ? content : malloc(FILE_BYTES);
	if (!f || !content)
		return -1;
	srand(1);
	for (size_t i = 0; i < FILE_BYTES; i++)
		content[i] = (uint8_t)rand();
	if (fwrite(content, 1, FILE_BYTES, f) != FILE_BYTES)
		return -1;
	return fclose(f);
}

static int remove_file(void **state)
{
	free(content);
	return unlink(FILE_NAME);
}

static struct source open_file(void)
{
	struct source src;

	assert_int_equal(source_open(&src, FILE_NAME, NULL), 0);
	return src;
}

struct job {
	enum dtype dtype;
	size_t off, n, to;
};

/* Make jobs with consecutive ranges of device memory. */
static size_t random_jobs(struct job *jobs, size_t n)
{
	static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_F32, DTYPE_BF16, DTYPE_F64,
					     DTYPE_U8 };
	size_t to = 0;

	for (size_t i = 0; i < n; i++) {
		const enum dtype d = dtypes[(size_t)rand() % COUNT(dtypes)];
		const size_t off = (size_t)rand() % FILE_BYTES;
		const size_t room = (FILE_BYTES - off) / dtype_size(d);
		const size_t most = rand() % 4 ? 1000 : (size_t)3 << 20;
		const size_t len = (size_t)rand() % most;

		jobs[i] = (struct job){ d, off, len < room ? len : room, to };
		to += jobs[i].n;
	}
	return to;
}

static void check_job(struct backend *b, const struct job *j, const float *to)
{
	float *got = malloc(j->n * sizeof(*got) + 1);
	float *want = malloc(j->n * sizeof(*want) + 1);

	b->ops->to_host(b, got, to + j->to, j->n * sizeof(*got));
	if (j->dtype == DTYPE_F32)
		memcpy(want, content + j->off, j->n * sizeof(*want));
	else
		cast_to_float(j->dtype, content + j->off, want, j->n);
	assert_memory_equal(got, want, j->n * sizeof(*got));
	free(got);
	free(want);
}

static void everything_arrives(void **state)
{
	struct job jobs[40];

	for (unsigned round = 0; round < 6; round++) {
		struct backend *b = devices[round % 2]();
		const size_t all = random_jobs(jobs, COUNT(jobs));
		float *to = b->ops->alloc(b, (all + 1) * sizeof(*to));
		struct source src = open_file();
		struct upload *q;

		assert_int_equal(upload_new(&q, b, 1 + round, 8, NULL), 0);
		for (size_t i = 0; i < COUNT(jobs); i++) {
			const struct job *j = &jobs[i];

			assert_int_equal(upload_add(q, &src, j->off, j->n * dtype_size(j->dtype),
						    j->dtype, to + j->to, NULL),
					 0);
			if (i == COUNT(jobs) / 2)
				assert_int_equal(upload_finish(q, NULL), 0);
		}
		assert_int_equal(upload_finish(q, NULL), 0);
		source_close(&src);
		assert_int_equal(apart_pending(), 0);
		upload_free(q);
		for (size_t i = 0; i < COUNT(jobs); i++)
			check_job(b, &jobs[i], to);
		b->ops->sync(b, NULL);
		b->ops->free(b, to);
	}
}

/* Columns of a matrix: more short ranges than a piece holds, some of another type. */
static void short_ranges_arrive(void **state)
{
	const size_t pitch = 3000, n = 600, rows = FILE_BYTES / pitch;

	for (size_t d = 0; d < COUNT(devices); d++) {
		struct backend *b = devices[d]();
		float *to = b->ops->alloc(b, rows * n * sizeof(*to));
		struct source src = open_file();
		struct upload *q;

		assert_int_equal(upload_new(&q, b, 2, 3, NULL), 0);
		for (size_t i = 0; i < rows; i++) {
			const enum dtype dtype = i / 1000 % 2 ? DTYPE_F32 : DTYPE_BF16;

			assert_int_equal(upload_add(q, &src, i * pitch, n * dtype_size(dtype),
						    dtype, to + i * n, NULL),
					 0);
		}
		assert_int_equal(upload_finish(q, NULL), 0);
		upload_free(q);
		source_close(&src);
		for (size_t i = 0; i < rows; i++)
			check_job(b, &(struct job){ i / 1000 % 2 ? DTYPE_F32 : DTYPE_BF16, i * pitch, n,
						    i * n }, to);
		b->ops->sync(b, NULL);
		b->ops->free(b, to);
	}
}

/* A store where one byte cannot be read: `ctx` is its offset. */
static int read_around(const struct source *s, void *buf, size_t len, uint64_t off,
		       struct errmsg *err)
{
	const uint64_t bad = *(const uint64_t *)s->ctx;

	if (off <= bad && bad < off + len)
		return errmsg_set(err, -EIO, "%s: byte %llu is bad", s->name,
				  (unsigned long long)bad);
	memcpy(buf, content + off, len);
	return 0;
}

/* Rows of 40 bytes with gaps of 60 arrive where a gap is bad, and not where a row is. */
static void gaps_need_not_be_readable(void **state)
{
	static const struct source_ops ops = { .read = read_around };
	static const struct {
		uint64_t bad;
		int rc;
	} cases[] = { { 140, 0 }, { 299, 0 }, { 300, -EIO }, { 339, -EIO }, { 340, 0 },
		      { 939, -EIO } };
	const size_t rows = 10, n = 10;

	for (size_t d = 0; d < COUNT(devices); d++) {
		struct backend *b = devices[d]();

		for (size_t k = 0; k < COUNT(cases); k++) {
			uint64_t bad = cases[k].bad;
			float *to = b->ops->alloc(b, rows * n * sizeof(*to));
			struct source src = { .name = "store", .size = FILE_BYTES, .fd = -1,
					      .ops = &ops, .ctx = &bad };
			struct errmsg err = { "" };
			struct upload *q;

			assert_int_equal(upload_new(&q, b, 1, 1, NULL), 0);
			for (size_t i = 0; i < rows; i++)
				assert_int_equal(upload_add(q, &src, i * 100, n * sizeof(*to), DTYPE_F32,
							    to + i * n, NULL), 0);
			assert_int_equal(upload_finish(q, &err), cases[k].rc);
			if (cases[k].rc)
				assert_non_null(strstr(err.text, "store: byte "));
			upload_free(q);
			for (size_t i = 0; !cases[k].rc && i < rows; i++)
				check_job(b, &(struct job){ DTYPE_F32, i * 100, n, i * n }, to);
			b->ops->sync(b, NULL);
			b->ops->free(b, to);
		}
	}
}

/* Write the file to disk and evict it. Return false if it exists only in the page cache. */
static bool make_cold(const struct source *src)
{
	return fsync(src->fd) == 0 && posix_fadvise(src->fd, 0, 0, POSIX_FADV_DONTNEED) == 0 &&
	       !pagecache_has(src->fd, 0, FILE_BYTES);
}

/* Uploads do not add pages to the page cache, except partial pages at the ends of ranges; pages in
 * the cache are read from it. */
static void cold_files_stay_cold(void **state)
{
	static const struct job jobs[] = {
		{ DTYPE_F32, 0, FILE_BYTES / 4, 0 },
		{ DTYPE_F32, 4092, (FILE_BYTES - 8192) / 4, 0 },
		{ DTYPE_BF16, 2, (FILE_BYTES - 4096) / 2, 0 },
		{ DTYPE_F16, 8192, FILE_BYTES / 4, 0 },
	};
	struct backend *b = apart();
	float *to = b->ops->alloc(b, FILE_BYTES * 2);

	for (size_t i = 0; i < COUNT(jobs); i++) {
		const struct job *j = &jobs[i];
		const size_t len = j->n * dtype_size(j->dtype);
		struct source src = open_file();
		struct upload *q;

		if (!make_cold(&src)) {
			source_close(&src);
			skip();
		}
		assert_int_equal(upload_new(&q, b, 2, 2, NULL), 0);
		assert_int_equal(upload_add(q, &src, j->off, len, j->dtype, to, NULL), 0);
		assert_int_equal(upload_finish(q, NULL), 0);
		upload_free(q);
		check_job(b, j, to);
		assert_false(pagecache_has(src.fd, j->off, len));
		source_close(&src);
	}
	b->ops->sync(b, NULL);
	b->ops->free(b, to);
}

/* Read from `off` in a file that has been truncated. */
static int read_short(struct backend *b, float *to, uint64_t off, struct errmsg *err)
{
	struct source src = open_file();
	struct upload *q;
	int rc;

	assert_int_equal(truncate(FILE_NAME, FILE_BYTES / 2), 0);
	assert_int_equal(upload_new(&q, b, 4, 4, NULL), 0);
	rc = upload_add(q, &src, off, FILE_BYTES - off, DTYPE_F32, to, err);
	if (!rc)
		rc = upload_finish(q, err);
	source_close(&src);
	upload_free(q);
	return rc;
}

static void failures_are_told(void **state)
{
	for (size_t d = 0; d < COUNT(devices); d++) {
		struct backend *b = devices[d]();
		float *to = b->ops->alloc(b, FILE_BYTES);
		const unsigned files = open_files();
		struct errmsg err = { "" };

		/* Pieces beyond the end fail, also those before it. */
		assert_int_equal(read_short(b, to, 0, &err), -EIO);
		assert_true(strncmp(err.text, FILE_NAME ": ", strlen(FILE_NAME ": ")) == 0);
		assert_non_null(strstr(err.text, "truncated "));
		assert_int_equal(open_files(), files);
		assert_int_equal(make_file(NULL), 0);
		b->ops->sync(b, NULL);
		b->ops->free(b, to);
	}
}

/* A tag overwritten in place would mix with the bytes already read. */
static void a_file_that_is_written_to_is_noticed(void **state)
{
	for (size_t d = 0; d < COUNT(devices); d++) {
		struct backend *b = devices[d]();
		float *to = b->ops->alloc(b, FILE_BYTES);
		struct source src = open_file();
		struct errmsg err = { "" };
		struct upload *q;

		src.id.mtime_ns--;
		assert_int_equal(upload_new(&q, b, 4, 4, NULL), 0);
		assert_int_equal(upload_add(q, &src, 0, 4096, DTYPE_F32, to, NULL), 0);
		assert_int_equal(upload_finish(q, &err), -EIO);
		assert_string_equal(err.text, FILE_NAME ": was written to since it was planned");
		upload_free(q);
		source_close(&src);
		b->ops->sync(b, NULL);
		b->ops->free(b, to);
	}
}

static void nothing_more_is_read_after_a_failure(void **state)
{
	struct backend *b = cpu();
	struct source src = open_file(), bad = { .name = "bad", .size = FILE_BYTES };
	struct errmsg err = { "" };
	float *to = calloc(1, FILE_BYTES);
	struct upload *q;

	bad.fd = open(".", O_RDONLY | O_DIRECTORY);
	assert_int_equal(upload_new(&q, b, 1, 2, NULL), 0);
	assert_int_equal(upload_add(q, &bad, 0, 4, DTYPE_F32, to, NULL), 0);
	assert_int_equal(upload_add(q, &src, 0, 4096, DTYPE_F32, to + 2, NULL), 0);
	assert_int_equal(upload_finish(q, &err), -EIO);
	assert_string_equal(err.text, "bad: read at 0: Is a directory");
	assert_true(to[2] == 0 && to[1025] == 0);
	upload_free(q);
	close(bad.fd);
	source_close(&src);
	free(to);
}

static void beyond_the_end_is_refused_at_once(void **state)
{
	struct source src = open_file();
	struct errmsg err = { "" };
	struct upload *q;
	float x;

	assert_int_equal(upload_new(&q, cpu(), 2, 2, NULL), 0);
	assert_int_equal(upload_add(q, &src, FILE_BYTES - 3, 4, DTYPE_F32, &x, &err), -EBADMSG);
	assert_non_null(strstr(err.text, FILE_NAME ": ends at 20971520"));
	assert_int_equal(upload_finish(q, NULL), 0);
	upload_free(q);
	source_close(&src);
}

static void it_can_be_given_up(void **state)
{
	for (size_t d = 0; d < COUNT(devices); d++) {
		struct backend *b = devices[d]();
		float *to = b->ops->alloc(b, FILE_BYTES);
		const unsigned files = open_files();
		struct source src = open_file();
		struct upload *q;

		assert_int_equal(upload_new(&q, b, 3, 3, NULL), 0);
		assert_int_equal(upload_add(q, &src, 0, FILE_BYTES, DTYPE_F32, to, NULL), 0);
		upload_free(q);
		source_close(&src);
		assert_int_equal(open_files(), files);
		b->ops->sync(b, NULL);
		b->ops->free(b, to);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_arrives),
		cmocka_unit_test(short_ranges_arrive),
		cmocka_unit_test(gaps_need_not_be_readable),
		cmocka_unit_test(cold_files_stay_cold),
		cmocka_unit_test(failures_are_told),
		cmocka_unit_test(a_file_that_is_written_to_is_noticed),
		cmocka_unit_test(nothing_more_is_read_after_a_failure),
		cmocka_unit_test(beyond_the_end_is_refused_at_once),
		cmocka_unit_test(it_can_be_given_up),
	};

	return cmocka_run_group_tests(tests, make_file, remove_file);
}
