/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/dcp/copy.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/format/pickle.h"
#include "ckpt/vfile/file_layout.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/zero_object.h"
#include "tests/make/mkckpt.h"

#define CASE "tests/good/dcp_fsdp2_dp4_uneven/ckpt"

char *copy_path(const char *dir, const char *name)
{
	char *path;

	assert_true(asprintf(&path, "%s/%s", dir, name) > 0);
	return path;
}

void copy_write(const struct copy *c, const void *p, size_t len)
{
	char *path = copy_path(c->dir, DCP_METADATA);
	FILE *f = fopen(path, "wb");

	assert_non_null(f);
	assert_int_equal(fwrite(p, 1, len, f), len);
	fclose(f);
	free(path);
}

void copy_reset(struct copy *c)
{
	struct errmsg err;

	arena_done(&c->a);
	c->a = (struct arena){ 0 };
	if (pickle_load(c->bytes, CASE, &c->a, &c->root, &err))
		fail_msg("%s", err.text);
	c->metadata = c->root->obj->state;
}

void copy_commit(struct copy *c)
{
	struct bytebuf out = { 0 };
	struct errmsg err;

	if (pickle_dump(c->root, &out, NULL, &err))
		fail_msg("%s", err.text);
	copy_write(c, out.data, out.len);
	bytebuf_done(&out);
}

int copy_open(const struct copy *c, struct checkpoint **out, struct errmsg *err)
{
	return checkpoint_open(test_context(), &dcp_checkpoint_ops, c->dir, NULL, NULL, out, err);
}

/* Read the laid-out file. */
static int read_laid_out(struct checkpoint *c, struct file_layout *d, const struct value *root,
			 struct bytebuf *out)
{
	struct vfile *f = NULL;
	int rc = layout_finish(d, root, "file");

	if (!rc) {
		f = vfile_new_pt(c->shards, &d->w, d->storages, &d->gathers, NULL, d->err);
		rc = f ? 0 : -EIO;
	}
	out->len = 0;
	if (!rc) {
		bytebuf_add_fill(out, 0, vfile_size(f));
		rc = (int)vfile_read(f, out->data, out->len, 0, d->err);
		vfile_free(f);
	}
	layout_done(d);
	return rc < 0 ? rc : 0;
}

static int read_files(struct checkpoint *c, struct bytebuf *files, struct errmsg *err)
{
	struct file_layout d = { .extents = true, .err = err };
	const struct value *root = zero_object_states(c, 0, 0, &d);
	int rc = read_laid_out(c, &d, root, &files[0]);
	struct recut s;

	if (rc || c->ranks->refused)
		return rc;
	rc = recut_init(&s, c, 1, 1, err);
	if (!rc) {
		d = (struct file_layout){ .extents = true, .err = err };
		root = recut_lay_out(&s, OBJECT_OPTIMIZER, 0, &d);
		rc = read_laid_out(c, &d, root, &files[1]);
	}
	recut_done(&s);
	return rc;
}

int copy_read(const struct copy *c, struct bytebuf *files, struct errmsg *err)
{
	struct checkpoint *open;
	int rc = copy_open(c, &open, err);

	if (rc)
		return rc;
	rc = read_files(open, files, err);
	checkpoint_close(open);
	return rc;
}

int copy_setup(void **state)
{
	static struct copy c;
	const char *top = getenv("top_srcdir");
	char *relative = copy_path(top ? top : ".", CASE);
	char *from = realpath(relative, NULL);
	char *source;
	struct errmsg err = { "" };
	size_t len;

	assert_non_null(from);
	c.dir = mkckpt_new_dir();
	for (int i = 0; i < 4; i++) {
		char name[32], *to, *target;

		snprintf(name, sizeof(name), "__%d_0.distcp", i);
		to = copy_path(c.dir, name);
		target = copy_path(from, name);
		assert_int_equal(symlink(target, to), 0);
		free(target);
		free(to);
	}
	source = copy_path(from, DCP_METADATA);
	assert_int_equal(source_text(source, 1 << 20, (char **)&c.bytes.p, &len, &err), 0);
	c.bytes.len = len;
	free(source);
	free(relative);
	free(from);
	copy_reset(&c);
	copy_commit(&c);
	if (copy_read(&c, c.files, &err))
		fail_msg("%s", err.text);
	*state = &c;
	return 0;
}

int copy_teardown(void **state)
{
	struct copy *c = *state;

	for (int i = 0; i < COPY_FILES; i++)
		bytebuf_done(&c->files[i]);
	arena_done(&c->a);
	free((void *)c->bytes.p);
	context_free(test_context());
	mkckpt_free_dir(c->dir);
	return 0;
}

struct value *copy_info(const struct copy *c, const char *key)
{
	const struct value_dict *d = value_find_pairs(c->metadata, "storage_data");

	for (size_t i = 0; i < d->n; i++)
		if (value_is_str(value_find(d->v[i].key->obj->state, "fqn"), key))
			return d->v[i].val->obj->state;
	return NULL;
}

FILE *copy_own_file(const struct copy *c, const char *name)
{
	char *path = copy_path(c->dir, name);
	char *own = copy_path(c->dir, "own");
	struct errmsg err = { "" };
	char *bytes;
	size_t len;
	FILE *f;

	assert_int_equal(source_text(path, 1 << 20, &bytes, &len, &err), 0);
	f = fopen(own, "w+b");
	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, len, f), len);
	assert_int_equal(fflush(f), 0);
	assert_int_equal(rename(own, path), 0);
	free(bytes);
	free(own);
	free(path);
	return f;
}
