/* SPDX-License-Identifier: Apache-2.0 */
/* GPUDirect Storage on an emulated GPU and cuFile: data arrives correctly
 * whatever cuFile does, and cuFile is used exactly for suitable reads. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/tensor/cast.h"
#include "cudaemu_cufile.h"
#include "gpu/backend/backend.h"
#include "gpu/cuda/backend_cuda.h"
#include "gpu/read/upload.h"
#include "tests/support/openfiles.h"
#include "tests/support/unit.h"

#define FILE_NAME "gds.tmp"
#define MIB ((size_t)1 << 20)
#define PIECE (8 * MIB) /* of an upload */
#define FILE_BYTES (3 * PIECE)
#define PAGE 4096

static uint8_t *content;

static int make_file(void **state)
{
	FILE *f = fopen(FILE_NAME, "w");

	content = malloc(FILE_BYTES);
	if (!f || !content)
		return -1;
	srand(1);
	for (size_t i = 0; i < FILE_BYTES; i++)
		content[i] = (uint8_t)rand();
	return fwrite(content, 1, FILE_BYTES, f) != FILE_BYTES || fclose(f);
}

static int remove_file(void **state)
{
	free(content);
	return unlink(FILE_NAME);
}

/* Needs a filesystem with direct reads. */
static void require_direct(void)
{
	const int fd = open(FILE_NAME, O_RDONLY | O_DIRECT);

	if (fd < 0) {
		print_message("no direct reads here: %s\n", strerror(errno));
		skip();
	}
	close(fd);
}

static struct backend *device(bool no_gds)
{
	const struct backend_cuda_options o = { .no_gds = no_gds };
	struct backend *b;

	assert_int_equal(backend_cuda_new(&b, DTYPE_F32, &o, NULL), 0);
	return b;
}

/* --- one load ---------------------------------------------------------------- */

struct part {
	size_t off, len;
	enum dtype dtype;
};

static void ask(struct upload *q, const struct part *p, float *to)
{
	struct source src;

	assert_int_equal(source_open(&src, FILE_NAME, NULL), 0);
	assert_int_equal(
		upload_add(q, &src, p->off, p->len, p->dtype, to, NULL), 0);
	source_close(&src);
}

static void check_part(struct backend *b, const struct part *p, const float *to)
{
	const size_t n = p->len / dtype_size(p->dtype);
	float *got = malloc(n * sizeof(*got));
	float *want = malloc(n * sizeof(*want));

	b->ops->to_host(b, got, to, n * sizeof(*got));
	if (p->dtype == DTYPE_F32)
		memcpy(want, content + p->off, p->len);
	else
		cast_to_float(p->dtype, content + p->off, want, n);
	assert_memory_equal(got, want, n * sizeof(*got));
	free(got);
	free(want);
}

static size_t elements(const struct part *p)
{
	return p->len / dtype_size(p->dtype);
}

/* Everything arrives and nothing stays open; checks the bytes read by cuFile,
 * and its first failure. */
static uint64_t load_with(bool no_gds, const struct part *parts, size_t n,
			  struct errmsg *failure)
{
	struct backend *b = device(no_gds);
	const unsigned files = open_files();
	size_t all = 0, at = 0;
	struct upload *q;
	uint64_t bytes;
	float *to;

	for (size_t i = 0; i < n; i++)
		all += elements(&parts[i]);
	to = b->ops->alloc(b, all * sizeof(*to));
	assert_int_equal(upload_new(&q, b, 3, 3, NULL), 0);
	for (size_t i = 0; i < n; at += elements(&parts[i]), i++)
		ask(q, &parts[i], to + at);
	assert_int_equal(upload_finish(q, NULL), 0);
	bytes = upload_gds(q, failure);
	upload_free(q);
	assert_int_equal(open_files(), files);
	assert_int_equal(cudaemu_cufile.handles, 0);
	assert_int_equal(cudaemu_cufile.drivers, 0);
	at = 0;
	for (size_t i = 0; i < n; at += elements(&parts[i]), i++)
		check_part(b, &parts[i], to + at);
	b->ops->free(b, to);
	b->ops->destroy(b);
	return bytes;
}

static const struct part whole = { 0, FILE_BYTES, DTYPE_F32 };

static uint64_t load(struct errmsg *failure)
{
	return load_with(false, &whole, 1, failure);
}

/* --- what it is asked for ----------------------------------------------------- */

static void large_aligned_floats_go_by_cufile(void **state)
{
	static const struct {
		const char *what;
		struct part part;
		size_t bytes; /* by cuFile */
	} cases[] = {
		{ "whole pages", { PAGE, 8 * MIB, DTYPE_F32 }, 8 * MIB },
		{ "what is before and after them is not",
		  { PAGE - 8, 8 * MIB, DTYPE_F32 },
		  8 * MIB - PAGE },
		{ "a little more than the least",
		  { PAGE - 4, MIB + 8, DTYPE_F32 },
		  MIB },
		{ "less than the least of them", { PAGE - 4, MIB, DTYPE_F32 }, 0 },
		{ "little", { 0, MIB - PAGE, DTYPE_F32 }, 0 },
		{ "no page begins with an element",
		  { 2 * PAGE + 1, 8 * MIB, DTYPE_F32 },
		  0 },
		{ "numbers of 16 bits", { 0, 8 * MIB, DTYPE_BF16 }, 0 },
		{ "numbers of 64 bits", { 0, 8 * MIB, DTYPE_F64 }, 0 },
		{ "the whole file", { 0, FILE_BYTES, DTYPE_F32 }, FILE_BYTES },
	};

	require_direct();
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct errmsg failure;
		uint64_t bytes;

		cudaemu_cufile_begin();
		bytes = load_with(false, &cases[i].part, 1, &failure);
		if (bytes != cases[i].bytes)
			fail_msg("%s: %zu bytes by cuFile", cases[i].what,
				 (size_t)bytes);
		assert_string_equal(failure.text, "");
		assert_int_equal(cudaemu_cufile.reads > 0, bytes > 0);
	}
}

static void a_file_is_registered_once(void **state)
{
	struct part parts[20];
	struct errmsg failure;

	require_direct();
	for (size_t i = 0; i < COUNT(parts); i++) {
		const size_t off = (size_t)rand() % (FILE_BYTES / 8);
		const size_t n = (size_t)rand() % (FILE_BYTES / 8);

		parts[i] = (struct part){ off * 4, n * 4 + 4, DTYPE_F32 };
	}
	cudaemu_cufile_begin();
	load_with(false, parts, COUNT(parts), &failure);
	assert_in_range(cudaemu_cufile.reads, COUNT(parts) / 2, 1000);
	assert_int_equal(cudaemu_cufile.registered, 1);
	assert_string_equal(failure.text, "");
}

/* --- where it is not asked ----------------------------------------------------- */

static void there_is_no_library(void)
{
	cudaemu_cufile.there = false;
}

static void there_is_no_driver(void)
{
	cudaemu_cufile.opens = CU_FILE_DRIVER_NOT_INITIALIZED;
}

static void it_only_copies(void)
{
	cudaemu_cufile.reaches = 0;
}

static void it_is_told_to_copy(void)
{
	cudaemu_cufile.control = 1u << 2;
}

static void it_reaches_other_files(void)
{
	cudaemu_cufile.reaches =
		1u << CU_FILE_NFS_SUPPORTED | 1u << CU_FILE_LUSTRE_SUPPORTED;
}

static void files_are_on_what_it_does_not_know(void)
{
	cudaemu_cufile.fs = TMPFS_MAGIC;
}

static void the_page_cache_has_them(void)
{
	cudaemu_cufile.cache = true;
}

static void elsewhere_files_are_read_as_ever(void **state)
{
	static void (*const cases[])(void) = {
		there_is_no_library,     there_is_no_driver,
		it_only_copies,          it_is_told_to_copy,
		it_reaches_other_files,  files_are_on_what_it_does_not_know,
		the_page_cache_has_them,
	};
	struct errmsg failure;

	require_direct();
	for (size_t i = 0; i < COUNT(cases); i++) {
		cudaemu_cufile_begin();
		cases[i]();
		if (load(&failure) || cudaemu_cufile.reads)
			fail_msg("case %zu: read by cuFile", i);
		assert_string_equal(failure.text, "");
	}
	cudaemu_cufile_begin();
	assert_int_equal(load_with(true, &whole, 1, &failure), 0);
	assert_int_equal(cudaemu_cufile.reads, 0);
}

static void other_filesystems_have_their_own_bits(void **state)
{
	static const struct {
		unsigned long fs;
		unsigned bit;
	} cases[] = {
		{ EXT4_SUPER_MAGIC, CU_FILE_NVMEOF_SUPPORTED },
		{ XFS_SUPER_MAGIC, CU_FILE_NVME_SUPPORTED },
		{ NFS_SUPER_MAGIC, CU_FILE_NFS_SUPPORTED },
		{ 0x0bd00bd0, CU_FILE_LUSTRE_SUPPORTED },
		{ 0x47504653, CU_FILE_GPFS_SUPPORTED },
		{ 0x19830326, CU_FILE_BEEGFS_SUPPORTED },
	};
	struct errmsg failure;

	require_direct();
	for (size_t i = 0; i < COUNT(cases); i++) {
		cudaemu_cufile_begin();
		cudaemu_cufile.fs = cases[i].fs;
		cudaemu_cufile.reaches = 1u << cases[i].bit;
		assert_int_equal(load(&failure), FILE_BYTES);
		cudaemu_cufile.reaches = ~cudaemu_cufile.reaches;
		if (i > 1)
			assert_int_equal(load(&failure), 0);
	}
}

/* Use the kernel's real page cache. */
static void what_was_written_out_and_dropped_is_read_by_cufile(void **state)
{
	const int fd = open(FILE_NAME, O_RDONLY);
	struct errmsg failure;

	require_direct();
	assert_int_equal(fsync(fd), 0);
	assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	close(fd);
	cudaemu_cufile_begin();
	cudaemu_cufile.cache = true;
	if (load(&failure) != FILE_BYTES) {
		print_message("this filesystem keeps what it has in memory\n");
		skip();
	}
	/* The emulation has read it into the cache. */
	assert_int_equal(load(&failure), 0);
}

/* --- what goes wrong ----------------------------------------------------------- */

static void short_reads_are_continued(void **state)
{
	static const size_t most[] = { 300001, PAGE, 3 * MIB };
	struct errmsg failure;

	require_direct();
	for (size_t i = 0; i < COUNT(most); i++) {
		cudaemu_cufile_begin();
		cudaemu_cufile.most = most[i];
		assert_int_equal(load(&failure), FILE_BYTES);
		assert_true(cudaemu_cufile.reads >= FILE_BYTES / most[i]);
		assert_string_equal(failure.text, "");
	}
}

static void what_it_fails_with_is_read_otherwise(void **state)
{
	static const struct {
		ssize_t result;
		unsigned good;
		const char *why;
	} cases[] = {
		{ -1, 0, "Input/output error" },
		{ -CU_FILE_INTERNAL_ERROR, 0, "some error of cuFile" },
		{ 0, 0, "nothing more to read" },
		{ -CU_FILE_IO_NOT_SUPPORTED, 2, "not supported on this file" },
	};

	require_direct();
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct errmsg failure;

		cudaemu_cufile_begin();
		cudaemu_cufile.result = cases[i].result;
		cudaemu_cufile.good = cases[i].good;
		assert_int_equal(load(&failure), cases[i].good * PIECE);
		assert_non_null(
			strstr(failure.text, FILE_NAME ": cuFileRead at "));
		assert_non_null(strstr(failure.text, cases[i].why));
	}
}

/* Also in the middle of a piece, after a part of it was read. */
static void a_piece_that_breaks_off_is_read_anew(void **state)
{
	struct errmsg failure;

	require_direct();
	cudaemu_cufile_begin();
	cudaemu_cufile.most = MIB;
	cudaemu_cufile.good = 12;
	cudaemu_cufile.result = -1;
	assert_true(load(&failure) <= PIECE);
	assert_string_not_equal(failure.text, "");
}

static void a_file_that_failed_is_not_tried_again(void **state)
{
	struct part parts[20];
	struct errmsg failure;

	require_direct();
	for (size_t i = 0; i < COUNT(parts); i++)
		parts[i] = (struct part){ 0, PIECE, DTYPE_F32 };
	cudaemu_cufile_begin();
	cudaemu_cufile.result = -1;
	load_with(false, parts, COUNT(parts), &failure);
	assert_in_range(cudaemu_cufile.reads, 1, 6); /* at most one per slot */

	cudaemu_cufile_begin();
	cudaemu_cufile.registers = CU_FILE_IO_NOT_SUPPORTED;
	load_with(false, parts, COUNT(parts), &failure);
	assert_int_equal(cudaemu_cufile.registered, 1);
	assert_int_equal(cudaemu_cufile.reads, 0);
	assert_string_equal(failure.text, FILE_NAME
			    ": cuFileHandleRegister: not supported on "
			    "this file");
}

static void a_truncated_file_is_told_as_ever(void **state)
{
	struct backend *b = device(false);
	float *to = b->ops->alloc(b, FILE_BYTES);
	struct errmsg err = { "" };
	struct source src;
	struct upload *q;
	int rc;

	require_direct();
	cudaemu_cufile_begin();
	assert_int_equal(source_open(&src, FILE_NAME, NULL), 0);
	assert_int_equal(truncate(FILE_NAME, 6 * MIB), 0);
	assert_int_equal(upload_new(&q, b, 3, 3, NULL), 0);
	rc = upload_add(q, &src, 0, FILE_BYTES, DTYPE_F32, to, &err);
	if (!rc)
		rc = upload_finish(q, &err);
	assert_int_equal(rc, -EIO);
	assert_string_equal(err.text,
			    FILE_NAME ": truncated at 6291456 while reading");
	upload_free(q);
	source_close(&src);
	b->ops->free(b, to);
	b->ops->destroy(b);
	free(content);
	assert_int_equal(make_file(NULL), 0);
}

static void it_can_be_given_up(void **state)
{
	struct backend *b = device(false);
	float *to = b->ops->alloc(b, FILE_BYTES);
	const unsigned files = open_files();
	struct upload *q;

	require_direct();
	cudaemu_cufile_begin();
	assert_int_equal(upload_new(&q, b, 2, 2, NULL), 0);
	ask(q, &whole, to);
	upload_free(q);
	assert_int_equal(open_files(), files);
	assert_int_equal(cudaemu_cufile.handles, 0);
	assert_int_equal(cudaemu_cufile.drivers, 0);
	b->ops->free(b, to);
	b->ops->destroy(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(large_aligned_floats_go_by_cufile),
		cmocka_unit_test(a_file_is_registered_once),
		cmocka_unit_test(elsewhere_files_are_read_as_ever),
		cmocka_unit_test(other_filesystems_have_their_own_bits),
		cmocka_unit_test(
			what_was_written_out_and_dropped_is_read_by_cufile),
		cmocka_unit_test(short_reads_are_continued),
		cmocka_unit_test(what_it_fails_with_is_read_otherwise),
		cmocka_unit_test(a_piece_that_breaks_off_is_read_anew),
		cmocka_unit_test(a_file_that_failed_is_not_tried_again),
		cmocka_unit_test(a_truncated_file_is_told_as_ever),
		cmocka_unit_test(it_can_be_given_up),
	};

	return cmocka_run_group_tests(tests, make_file, remove_file);
}
