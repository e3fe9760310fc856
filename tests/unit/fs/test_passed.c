/* SPDX-License-Identifier: Apache-2.0 */
/* Handles of a shard share one backing id, or none has one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile.h"
#include "fs/ops/passed.h"
#include "fs/ops/passthrough.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

/* The kernel: */
static bool refuses;
static int begun, ended;

int passthrough_begin(struct passthrough *p, int fd)
{
	(void)p;
	assert_true(fd >= 0);
	return refuses ? 0 : ++begun;
}

void passthrough_end(struct passthrough *p, int id)
{
	(void)p;
	assert_int_equal(id, begun);
	ended++;
}

struct fixture {
	char *dir, *path;
	struct shardcache *shards;
	struct vfile *v;
	struct passthrough kernel;
	struct passed_files files;
};

static void set_up(struct fixture *f)
{
	struct fileid id;
	struct stat st;

	*f = (struct fixture){ .dir = mkckpt_new_dir(), .kernel.on = true };
	f->files = (struct passed_files){ &f->kernel, test_context(), { 0 } };
	refuses = false;
	begun = ended = 0;
	assert_true(asprintf(&f->path, "%s/shard", f->dir) > 0);
	mkpt_save(f->path, "bytes", 5);
	assert_int_equal(stat(f->path, &st), 0);
	fileid_from_stat(&st, &id);
	f->shards = shardcache_new(test_context());
	assert_int_equal(shardcache_add(f->shards, f->path, &id), 0);
	f->v = vfile_new_verbatim(f->shards, 0, NULL);
	assert_non_null(f->v);
}

/* Read until a first open that was slow, on a busy machine, counts no more: shards that
 * may be far are streamed. */
static void wait_until_near(struct fixture *f)
{
	uint8_t byte;

	for (int i = 0; !shardcache_can_map(f->shards, 0) && i < 1000; i++)
		assert_int_equal(shardcache_read(f->shards, 0, &byte, 1, 0, NULL),
				 0);
}

static void tear_down(struct fixture *f)
{
	assert_true(LIST_EMPTY(&f->files.list));
	assert_int_equal(begun, ended);
	vfile_free(f->v);
	shardcache_free(f->shards);
	mkckpt_free_dir(f->dir);
	free(f->path);
}

static struct passed *open_handle(struct fixture *f, uint64_t ino)
{
	struct passed *h;

	assert_true(shardcache_has_descriptor(f->shards, 0));
	wait_until_near(f);
	assert_int_equal(passed_open(&f->files, ino, f->v, &h, NULL), 0);
	return h;
}

static void handles_of_a_file_share_its_id(void **state)
{
	struct passed *a, *b;
	struct fixture f;

	(void)state;
	set_up(&f);
	a = open_handle(&f, 7);
	b = open_handle(&f, 7);
	assert_int_equal(a->id, 1);
	assert_int_equal(b->id, 1);
	passed_close(&f.files, a);
	assert_int_equal(ended, 0);
	passed_close(&f.files, b);
	assert_int_equal(ended, 1);
	a = open_handle(&f, 7);
	assert_int_equal(a->id, 2);
	passed_close(&f.files, a);
	tear_down(&f);
}

static void all_are_streamed_while_one_is(void **state)
{
	struct passed *a, *b, *other;
	struct fixture f;

	(void)state;
	set_up(&f);
	refuses = true;
	a = open_handle(&f, 7);
	refuses = false;
	b = open_handle(&f, 7);
	other = open_handle(&f, 8);
	assert_int_equal(a->id, 0);
	assert_int_equal(b->id, 0);
	assert_int_equal(other->id, 1);
	passed_close(&f.files, a);
	passed_close(&f.files, b);
	passed_close(&f.files, other);
	tear_down(&f);
}

static void without_the_kernel_nothing_is_listed(void **state)
{
	struct fixture f;

	(void)state;
	set_up(&f);
	f.kernel.on = false;
	assert_null(open_handle(&f, 7));
	passed_close(&f.files, NULL);
	tear_down(&f);
}

static void a_shard_that_changed_is_an_error(void **state)
{
	struct errmsg err = { "" };
	struct passed *h;
	struct fixture f;

	(void)state;
	set_up(&f);
	mkpt_save(f.path, "other", 4);
	assert_int_equal(passed_open(&f.files, 7, f.v, &h, &err), -EIO);
	assert_non_null(strstr(err.text, "shard"));
	tear_down(&f);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(handles_of_a_file_share_its_id),
		cmocka_unit_test(all_are_streamed_while_one_is),
		cmocka_unit_test(without_the_kernel_nothing_is_listed),
		cmocka_unit_test(a_shard_that_changed_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
