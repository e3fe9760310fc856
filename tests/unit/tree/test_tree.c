/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that walk a fresh tree at once all see the same inodes, attributes and bytes. A tag may
 * be saved again during a walk; its old views are freed after their last use.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/tree/tree.h"
#include "ckpt/vfile/vfile.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

#define THREADS 4
#define DEPTH_MAX 8

struct fixture {
	char *dir;
	char source[4096];
	struct tree_options options;
	struct tree *t;
};

static void write_tag(const char *run, const char *tag, int stage)
{
	const struct mkckpt c = mkckpt_small(stage);
	char path[4200];

	snprintf(path, sizeof(path), "%s/%s", run, tag);
	assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
	mkckpt_write(&c, path);
}

/* A run of two tags, one of which is not planned yet. */
static void set_up(struct fixture *f)
{
	struct errmsg err = { "" };

	memset(f, 0, sizeof(*f));
	f->dir = mkckpt_new_dir();
	snprintf(f->source, sizeof(f->source), "%s/run", f->dir);
	assert_int_equal(mkdir(f->source, 0755), 0);
	write_tag(f->source, "global_step1", 1);
	write_tag(f->source, "global_step2", 3);
	f->options = (struct tree_options){
		.u = test_context(),
		.source = f->source,
	};
	if (tree_open(&f->options, &f->t, &err))
		fail_msg("%s", err.text);
}

static void tear_down(struct fixture *f)
{
	tree_close(f->t);
	mkckpt_free_dir(f->dir);
}

struct walk {
	struct tree *t;
	uint32_t sum; /* checksum of all names, inodes, sizes and bytes */
	unsigned files, views;
	const char *defect;
};

static void walk_add(struct walk *w, const void *p, size_t len)
{
	w->sum = crc32_add(w->sum, p, len);
}

static void walk_file(struct walk *w, uint64_t ino, uint64_t size)
{
	struct errmsg err = { "" };
	uint8_t *bytes = malloc(size + 1);
	struct tree_file f;
	int64_t n;

	if (tree_file_open(w->t, ino, &f, &err)) {
		w->defect = "a file cannot be opened";
		free(bytes);
		return;
	}
	n = f.v ? vfile_read(f.v, bytes, size + 1, 0, &err) : read(f.fd, bytes, size + 1);
	if (n != (int64_t)size)
		w->defect = "a file is not as long as its size says";
	else
		walk_add(w, bytes, size);
	tree_file_close(&f);
	free(bytes);
	w->files++;
}

static void walk_dir(struct walk *w, uint64_t ino, unsigned depth);

static void walk_entry(struct walk *w, uint64_t dir, const struct uckpt_entry *e, unsigned depth)
{
	struct tree_attr attr;
	double timeout;

	if (tree_lookup(w->t, dir, e->name, &attr, &timeout, NULL)) {
		w->defect = "a listed name cannot be looked up";
		return;
	}
	if (e->node && attr.st.st_ino != e->node)
		w->defect = "another inode than in the listing";
	walk_add(w, e->name, strlen(e->name));
	walk_add(w, &attr.st.st_ino, sizeof(attr.st.st_ino));
	walk_add(w, &attr.st.st_size, sizeof(attr.st.st_size));
	if (S_ISDIR(attr.st.st_mode))
		walk_dir(w, attr.st.st_ino, depth + 1);
	else
		walk_file(w, attr.st.st_ino, (uint64_t)attr.st.st_size);
}

static void walk_dir(struct walk *w, uint64_t ino, unsigned depth)
{
	struct errmsg err = { "" };
	struct uckpt_dir *d;
	struct uckpt_entry e;
	uint64_t pos = 0;

	if (depth > DEPTH_MAX || tree_dir_open(w->t, ino, &d, &err)) {
		w->defect = "a directory cannot be listed";
		return;
	}
	w->views += depth == 1 && d->immutable;
	while (!w->defect && tree_dir_next(d, &pos, &e, &err) == 1)
		walk_entry(w, ino, &e, depth);
	tree_dir_close(d);
}

static void *walk_all(void *arg)
{
	walk_dir(arg, TREE_ROOT, 0);
	return NULL;
}

static void walks_at_once_agree(void **state)
{
	struct walk walks[THREADS] = { 0 };
	pthread_t threads[THREADS];
	struct fixture f;

	(void)state;
	set_up(&f);
	for (unsigned i = 0; i < THREADS; i++) {
		walks[i].t = f.t;
		assert_int_equal(pthread_create(&threads[i], NULL, walk_all, &walks[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		if (walks[i].defect)
			fail_msg("%s", walks[i].defect);
	}
	for (unsigned i = 1; i < THREADS; i++)
		assert_int_equal(walks[i].files, walks[0].files);
	assert_int_equal(walks[0].views, 8); /* four of each tag */
	assert_true(walks[0].files > 30);
	tear_down(&f);
}

struct walker {
	struct tree *t;
	atomic_bool stop;
	pthread_t thread;
};

/* Files and directories of a tag that is being saved may fail. */
static void *walk_on(void *arg)
{
	struct walker *w = arg;

	while (!atomic_load(&w->stop)) {
		struct walk walk = { .t = w->t };

		walk_all(&walk);
	}
	return NULL;
}

/* Return the inode of the first tag's view, or 0 while there is none. */
static uint64_t first_view(struct tree *t)
{
	struct tree_attr attr;
	double timeout;

	return tree_lookup(t, TREE_ROOT, "global_step1_universal", &attr, &timeout, NULL)
		       ? 0
		       : attr.st.st_ino;
}

/* Return fp32.pt of the first parameter in a tag's view. */
static uint64_t first_parameter_file(struct tree *t)
{
	static const char *const dirs[] = { "global_step1_universal", "zero" };
	struct tree_attr attr = { .st.st_ino = TREE_ROOT };
	struct uckpt_entry e = { 0 };
	struct uckpt_dir *d;
	uint64_t pos = 0;
	double timeout;

	for (size_t i = 0; i < COUNT(dirs); i++)
		assert_int_equal(tree_lookup(t, attr.st.st_ino, dirs[i], &attr, &timeout, NULL), 0);
	assert_int_equal(tree_dir_open(t, attr.st.st_ino, &d, NULL), 0);
	while (tree_dir_next(d, &pos, &e, NULL) == 1 && !S_ISDIR(e.type))
		;
	tree_dir_close(d);
	assert_int_equal(tree_lookup(t, attr.st.st_ino, e.name, &attr, &timeout, NULL), 0);
	assert_int_equal(tree_lookup(t, attr.st.st_ino, "fp32.pt", &attr, &timeout, NULL), 0);
	return attr.st.st_ino;
}

static void walks_go_on_while_a_tag_is_saved_again(void **state)
{
	struct walker walkers[THREADS] = { 0 };
	struct tree_file held;
	struct walk walk;
	struct fixture f;

	(void)state;
	set_up(&f);
	assert_int_equal(tree_file_open(f.t, first_parameter_file(f.t), &held, NULL), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		walkers[i].t = f.t;
		assert_int_equal(pthread_create(&walkers[i].thread, NULL, walk_on, &walkers[i]), 0);
	}
	for (int save = 0; save < 2; save++) {
		const uint64_t old = first_view(f.t);
		uint64_t now = old;

		assert_int_not_equal(old, 0);
		write_tag(f.source, "global_step1", 1);
		for (int i = 0; i < 3000 && (now == 0 || now == old); i++) {
			usleep(10000);
			now = first_view(f.t);
		}
		assert_true(now != 0 && now != old);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		atomic_store(&walkers[i].stop, true);
		pthread_join(walkers[i].thread, NULL);
	}
	tree_file_close(&held);
	walk = (struct walk){ .t = f.t };
	walk_all(&walk);
	assert_null(walk.defect);
	tear_down(&f);
}

/* Once all inodes have been given out, a walk repeats exactly. */
static void walks_repeat(void **state)
{
	struct walk first, again;
	struct fixture f;

	(void)state;
	set_up(&f);
	first = again = (struct walk){ .t = f.t };
	walk_all(&first);
	walk_all(&again);
	assert_null(first.defect);
	assert_int_equal(first.sum, again.sum);
	tear_down(&f);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(walks_at_once_agree),
		cmocka_unit_test(walks_go_on_while_a_tag_is_saved_again),
		cmocka_unit_test(walks_repeat),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
