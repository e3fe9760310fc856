/* SPDX-License-Identifier: Apache-2.0 */
/* All handles of a shard have the same backing id, or none has one. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "ckpt/uckpt.h"
#include "fs/ops/passthrough.h"
#include "fs/ops/passthrough_files.h"
#include "tests/support/unit.h"

/* Stub of the kernel: */
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

/* Stub of the library: returns a file with a descriptor, or this error. */
static int library_rc;

int uckpt_file_descriptor(struct uckpt_file *f, int *fd, struct uckpt_error *err)
{
	assert_ptr_equal(f, &library_rc);
	if (library_rc == -EIO)
		strcpy(err->text, "shard: changed");
	else
		*fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return library_rc;
}

struct fixture {
	pthread_mutex_t lock;
	struct uckpt_file *file;
	struct passthrough kernel;
	struct passthrough_files files;
};

static void set_up(struct fixture *f)
{
	*f = (struct fixture){ .lock = PTHREAD_MUTEX_INITIALIZER,
			       .file = (struct uckpt_file *)&library_rc,
			       .kernel.on = true };
	f->files = (struct passthrough_files){ &f->kernel, &f->lock, { 0 } };
	refuses = false;
	begun = ended = library_rc = 0;
}

static void tear_down(struct fixture *f)
{
	assert_true(LIST_EMPTY(&f->files.list));
	assert_int_equal(begun, ended);
}

static struct passthrough_file *open_handle(struct fixture *f, uint64_t ino)
{
	struct passthrough_file *h;

	assert_int_equal(passthrough_file_open(&f->files, ino, f->file, &h, NULL), 0);
	return h;
}

static void handles_of_a_file_share_its_id(void **state)
{
	struct passthrough_file *a, *b;
	struct fixture f;

	(void)state;
	set_up(&f);
	a = open_handle(&f, 7);
	b = open_handle(&f, 7);
	assert_int_equal(a->id, 1);
	assert_int_equal(b->id, 1);
	passthrough_file_close(&f.files, a);
	assert_int_equal(ended, 0);
	passthrough_file_close(&f.files, b);
	assert_int_equal(ended, 1);
	a = open_handle(&f, 7);
	assert_int_equal(a->id, 2);
	passthrough_file_close(&f.files, a);
	tear_down(&f);
}

static void all_are_streamed_while_one_is(void **state)
{
	struct passthrough_file *a, *b, *other;
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
	passthrough_file_close(&f.files, a);
	passthrough_file_close(&f.files, b);
	passthrough_file_close(&f.files, other);
	tear_down(&f);
}

static void without_the_kernel_nothing_is_listed(void **state)
{
	struct fixture f;

	(void)state;
	set_up(&f);
	f.kernel.on = false;
	assert_null(open_handle(&f, 7));
	passthrough_file_close(&f.files, NULL);
	tear_down(&f);
}

static void a_computed_file_is_always_streamed(void **state)
{
	struct fixture f;

	(void)state;
	set_up(&f);
	library_rc = -ENOTSUP;
	assert_null(open_handle(&f, 7));
	tear_down(&f);
}

static void a_shard_that_changed_is_an_error(void **state)
{
	struct uckpt_error err = { "" };
	struct passthrough_file *h;
	struct fixture f;

	(void)state;
	set_up(&f);
	library_rc = -EIO;
	assert_int_equal(passthrough_file_open(&f.files, 7, f.file, &h, &err), -EIO);
	assert_non_null(strstr(err.text, "shard"));
	tear_down(&f);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(handles_of_a_file_share_its_id),
		cmocka_unit_test(all_are_streamed_while_one_is),
		cmocka_unit_test(without_the_kernel_nothing_is_listed),
		cmocka_unit_test(a_computed_file_is_always_streamed),
		cmocka_unit_test(a_shard_that_changed_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
