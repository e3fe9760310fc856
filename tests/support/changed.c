/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/changed.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/io/io.h"
#include "tests/make/literal.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

char *changed_path(const char *dir, const char *name)
{
	char *path;

	assert_true(asprintf(&path, "%s/%s", dir, name) > 0);
	return path;
}

void changed_open(const char *from, struct ptfile *pt, struct mkpt *m)
{
	struct errmsg err;

	if (io_open_pt(test_context(), from, NULL, pt, &err))
		fail_msg("%s", err.text);
	for (size_t i = 0;; i++) {
		char name[32];
		const struct zip_entry *e;
		uint8_t *bytes;
		uint64_t at;

		snprintf(name, sizeof(name), "data/%zu", i);
		e = zip_find(&pt->zip, name);
		if (!e)
			break;
		bytes = calloc(1, e->size + 1);
		assert_int_equal(zip_locate(&pt->zip, e, &at, &err), 0);
		assert_int_equal(source_read(&pt->src, bytes, e->size, at, &err), 0);
		mkpt_add_storage(m, bytes, e->size);
		free(bytes);
	}
}

static void change_file(const char *from, const char *to, const char *change)
{
	struct bytebuf out = { 0 };
	struct mkpt m = { 0 };
	struct ptfile pt;

	changed_open(from, &pt, &m);
	literal_change(&m, pt.root, change);
	mkpt_emit(&m, pt.root, "changed", &out);
	mkpt_save(to, out.data, out.len);
	bytebuf_done(&out);
	mkpt_done(&m);
	ptfile_close(&pt);
}

char *changed_tag(const char *tag, const char *lost, const char *which, const char *change)
{
	const char *top = getenv("top_srcdir");
	char *dir = mkckpt_new_dir(), *old;
	struct dirlist l = { 0 };
	struct errmsg err;

	assert_true(asprintf(&old, "%s/tests/good/%s", top ? top : ".", tag) > 0);
	assert_int_equal(io_list(test_context(), old, IO_PLAIN, &l, &err), 0);
	for (size_t i = 0; i < l.n; i++) {
		const char *name = l.v[i].name;
		char *relative = changed_path(old, name);
		char *from = realpath(relative, NULL);
		char *to = changed_path(dir, name);

		if (which && fnmatch(which, name, 0) == 0)
			change_file(from, to, change);
		else if (!lost || fnmatch(lost, name, 0) != 0)
			assert_int_equal(symlink(from, to), 0);
		free(to);
		free(from);
		free(relative);
	}
	dirlist_done(&l);
	free(old);
	return dir;
}
