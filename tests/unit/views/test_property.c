/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever a checkpoint's geometry is, each universal file has the bytes that
 * follow from the whole tensors, wherever reads begin and end.
 *
 * A geometry follows from its number: degrees, groups, layout, shapes, rules.
 * Its shards are written to /dev/shm if that exists. A failing number is printed
 * and can be tried again with
 *
 *	UCFS_GEOMETRIES=4711 ./tests/unit/views/test_property
 *
 * which also prints the geometry. UCFS_GEOMETRIES=1-1000000 tries more numbers than
 * `make check` does.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"
#include "ckpt/zero/checkpoint.h"
#include "gpu/backend/splitmix.h"
#include "tests/make/world.h"
#include "tests/support/context.h"
#include "tests/support/recut.h"
#include "tests/support/sampled.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"

/* ASan takes about five times as long per geometry; use fewer, so that the test takes seconds. */
#ifdef __SANITIZE_ADDRESS__
#define GEOMETRIES 300
#else
#define GEOMETRIES 1200
#endif
#define RANKS_MAX 9
#define GROUPS_MAX 3

struct dice {
	uint64_t state;
};

/* Return a random number below `n`. */
static uint64_t roll(struct dice *d, uint64_t n)
{
	return splitmix64_next(&d->state) % n;
}

/* Choose the width, at least `least`, of each rank's share of part `j`. */
static void make_part(struct dice *d, const struct world *w, struct world_tensor *t, size_t j,
		      uint64_t least)
{
	const bool even = t->rule == MERGE_SUB_PARAMS && (w->before_04 || roll(d, 2));
	const uint64_t each = j && t->counted ? t->widths[0][0] : 1 + roll(d, 4);

	for (unsigned k = 0; k < w->tp; k++) {
		uint64_t *width = &t->widths[j][k];

		if (even || t->copied[j])
			*width = each;
		else if (j == 1 && t->rule == MERGE_TWO_SUB_PARAMS)
			*width = t->widths[0][k] - (t->widths[0][k] && roll(d, 2));
		else /* the first rank has a share of every part */
			*width = k ? least + roll(d, 5) : 1 + roll(d, 4);
		if (k == 0 || !t->copied[j])
			t->shape[t->dim] += *width;
	}
}

static void make_cut(struct dice *d, const struct world *w, struct world_tensor *t, uint64_t least)
{
	t->parts = 1;
	if (t->rule == MERGE_CAT)
		t->dim = t->ndim > 1 ? (unsigned)roll(d, 2) : 0;
	if (t->rule == MERGE_SUB_PARAMS || t->rule == MERGE_AFFINE) {
		t->dim = (unsigned)roll(d, t->ndim);
		t->parts = 1 + roll(d, WORLD_PARTS_MAX);
		t->open = t->dim;
	}
	if (t->rule == MERGE_SUB_PARAMS && roll(d, 4) == 0)
		t->open = (unsigned)roll(d, t->ndim);
	if (t->rule == MERGE_TWO_SUB_PARAMS)
		t->parts = 2;
	t->counted = t->rule == MERGE_SUB_PARAMS && w->before_04 && roll(d, 2);
	t->shape[t->dim] = 0;
	for (size_t j = 0; j < t->parts; j++) {
		t->copied[j] = t->rule == MERGE_AFFINE && roll(d, 4) == 0;
		make_part(d, w, t, j, least);
	}
}

static enum merge_rule choose_rule(struct dice *d)
{
	static const enum merge_rule rules[] = {
		MERGE_CAT,     MERGE_CAT,        MERGE_REPLICATED,
		MERGE_AVERAGE, MERGE_SUB_PARAMS, MERGE_SUB_PARAMS,
		MERGE_AFFINE,  MERGE_AFFINE,     MERGE_TWO_SUB_PARAMS,
	};

	return rules[roll(d, COUNT(rules))];
}

static bool is_whole(const struct world_tensor *t)
{
	return t->rule == MERGE_REPLICATED || t->rule == MERGE_AVERAGE;
}

static void make_tensor(struct dice *d, struct world *w, unsigned stage, bool first_of_group)
{
	const uint64_t least = first_of_group ? 1 : 0;
	struct world_tensor *t = &w->v[w->n];

	*t = (struct world_tensor){ .rule = choose_rule(d), .stage = stage };
	snprintf(t->name, sizeof(t->name), "%u.t%zu.w", stage, w->n++);
	/* Scalars cannot be partitioned. */
	t->ndim = is_whole(t) ? (unsigned)roll(d, WORLD_DIMS_MAX)
			      : 1 + (unsigned)roll(d, WORLD_DIMS_MAX - 1);
	for (unsigned i = 0; i < t->ndim; i++)
		t->shape[i] = 1 + roll(d, i ? 6 : 20);
	/* Long runs take another path than short ones, and runs of more than 64
	 * KiB a third (gather.c). */
	if (t->ndim > 1 && roll(d, 30) == 0)
		t->shape[t->ndim - 1] = 200 + roll(d, 800);
	if (t->ndim > 2 && roll(d, 600) == 0) {
		t->shape[0] = 1 + roll(d, 3);
		t->shape[t->ndim - 1] = 16500;
	}
	if (!is_whole(t))
		make_cut(d, w, t, least);
	else if (t->ndim && !least && roll(d, 6) == 0)
		t->shape[roll(d, t->ndim)] = 0;
	t->vocab = t->ndim == 2 && roll(d, 4) == 0;
	t->tied = stage == 0 && w->pp > 1 && roll(d, 3) == 0;
	t->listed = t->tied ? roll(d, 4) : least && roll(d, 8) == 0;
	world_cut(t, w->tp);
}

/* Add frozen parameters and buffers. */
static void make_extra(struct dice *d, struct world *w)
{
	static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_F32, DTYPE_BF16, DTYPE_F64,
					     DTYPE_I64 };
	struct world_extra *e = &w->extras[w->nextras];

	*e = (struct world_extra){
		.as = { .dtype = dtypes[roll(d, COUNT(dtypes))],
			.ndim = (unsigned)roll(d, 4),
			.first = roll(d, 100),
			.spare = roll(d, 3) },
	};
	snprintf(e->name, sizeof(e->name), "frozen.%zu", w->nextras++);
	for (unsigned i = 0; i < e->as.ndim; i++)
		e->as.shape[i] = roll(d, 16) ? 1 + roll(d, 5) : 0;
	e->stage = (unsigned)roll(d, w->pp);
	e->last = e->stage + (unsigned)roll(d, w->pp - e->stage);
}

static void make_world(struct world *w, struct dice *d)
{
	const int stage = 1 + (int)roll(d, 3);

	w->tp = 1 + (unsigned)roll(d, WORLD_TP_MAX);
	w->pp = stage == 3 ? 1 : 1 + (unsigned)roll(d, WORLD_PP_MAX);
	w->before_04 = roll(d, 3) == 0;
	w->any_stage = roll(d, 3) == 0;
	w->as = (struct mkckpt){
		.stage = stage,
		.ranks = 1 + (unsigned)roll(d, RANKS_MAX),
		.ngroups = 1 + roll(d, GROUPS_MAX),
		.round_robin = stage < 3 && roll(d, 3) == 0,
		.align = roll(d, 3) == 0 ? 1 + (unsigned)roll(d, 16) : 0,
		.padded = roll(d, 2),
		.bf16 = roll(d, 2),
		.tp = w->tp,
		.pp = w->pp,
	};
	for (unsigned s = 0; s < w->pp; s++) {
		const size_t n = w->as.ngroups + roll(d, 4);

		for (size_t i = 0; i < n; i++) {
			make_tensor(d, w, s, i < w->as.ngroups);
			w->v[w->n - 1].group =
				(unsigned)(i < w->as.ngroups ? i : roll(d, w->as.ngroups));
		}
	}
	for (size_t n = stage < 3 ? roll(d, WORLD_EXTRAS_MAX + 1) : 0; n; n--)
		make_extra(d, w);
}

static void describe(const struct world *w)
{
	print_message("ZeRO-%d, data %u, tensor %u, pipeline %u, groups %zu,"
		      " alignment %u%s%s%s%s\n",
		      w->as.stage, w->as.ranks, w->tp, w->pp, w->as.ngroups, w->as.align,
		      w->as.round_robin ? ", round robin" : "", w->as.padded ? ", padded" : "",
		      w->before_04 ? ", before 0.4" : "", w->any_stage ? ", any stage" : "");
	for (size_t i = 0; i < w->n; i++) {
		const struct world_tensor *t = &w->v[i];

		print_message("%s: group %u, %s along %u%s%s%s, shape", t->name, t->group,
			      merge_rule_name(t->rule), t->dim, t->vocab ? ", vocabulary" : "",
			      t->tied ? ", tied" : "", t->listed ? ", listed" : "");
		for (unsigned k = 0; k < t->ndim; k++)
			print_message(" %llu", (unsigned long long)t->shape[k]);
		for (size_t j = 0; j < t->parts; j++)
			for (unsigned k = 0; k < w->tp; k++)
				print_message("%s %llu", k ? "" : ", part",
					      (unsigned long long)t->widths[j][k]);
		print_message("\n");
	}
}

#define WRONG (-1000) /* is no errno */

/* Read like the mount, and checksum the mapped bytes. */
static int read_mapped(struct vfile *f, uint8_t *buf, size_t len, uint64_t off, struct errmsg *err)
{
	struct reply_pieces w;
	int rc = vfile_map(f, len, off, &w, err);

	if (rc)
		return rc;
	if (w.len != len)
		rc = errmsg_set(err, WRONG, "a window is too short");
	for (int i = 0; !rc && i < w.n; i++) {
		memcpy(buf, w.iov[i].iov_base, w.iov[i].iov_len);
		buf += w.iov[i].iov_len;
	}
	vfile_unmap(f, &w, true);
	return rc;
}

/* Read from front to back, like `ucckpt convert`. */
static int read_copied(struct vfile *f, uint8_t *buf, size_t len, uint64_t off, struct errmsg *err)
{
	return vfile_read(f, buf, len, off, err) == (int64_t)len ? 0 : WRONG;
}

/* Read [from, end) in pieces of random lengths. */
static int read_pieces(struct vfile *f, const struct bytebuf *want, uint64_t from, uint64_t end,
		       struct dice *d, struct errmsg *err)
{
	uint8_t *buf = malloc(want->len + 1);
	int rc = buf ? 0 : -ENOMEM;
	size_t n;

	for (uint64_t off = from; !rc && off < end; off += n) {
		n = 1 + roll(d, end - off);
		if (n > 400 && roll(d, 2))
			n = 1 + roll(d, 40);
		rc = roll(d, 4) ? read_copied(f, buf, n, off, err)
				: read_mapped(f, buf, n, off, err);
		if (!rc && memcmp(buf, want->data + off, n) != 0)
			rc = errmsg_set(err, WRONG,
					"%zu bytes at %llu of %zu are wrong",
					n, (unsigned long long)off, want->len);
	}
	free(buf);
	return rc;
}

static int check_bytes(struct vfile *f, const struct bytebuf *want, struct dice *d,
		       struct errmsg *err)
{
	const uint64_t middle = roll(d, 2) ? roll(d, want->len) : 0;
	uint8_t byte;
	int rc;

	if (vfile_size(f) != want->len)
		return errmsg_set(err, WRONG, "%llu bytes instead of %zu",
				  (unsigned long long)vfile_size(f), want->len);
	rc = read_pieces(f, want, middle, want->len, d, err);
	if (!rc)
		rc = read_pieces(f, want, 0, middle, d, err);
	if (!rc && vfile_read(f, &byte, 1, want->len, err) != 0)
		rc = errmsg_set(err, WRONG, "something beyond the end");
	return rc;
}

static int check_file(struct view *v, uint64_t dir, const char *name, const struct bytebuf *want,
		      struct dice *d, struct errmsg *err)
{
	struct view_stat st;
	struct vfile *f;
	char file[32];
	uint64_t node;
	int rc;

	snprintf(file, sizeof(file), "%s.pt", name);
	rc = view_lookup(v, dir, file, &node, err);
	if (!rc)
		rc = view_stat(v, node, &st, err);
	if (!rc && st.size != want->len)
		rc = errmsg_set(err, WRONG, "has %llu bytes instead of %zu",
				(unsigned long long)st.size, want->len);
	if (!rc)
		rc = view_file_open(v, node, &f, err);
	if (rc)
		return rc;
	rc = check_bytes(f, want, d, err);
	vfile_free(f);
	return rc;
}

static int count_entries(struct view *v, uint64_t dir, size_t *n, struct errmsg *err)
{
	struct view_entry e;
	uint64_t pos = 0;
	int rc;

	*n = 0;
	while ((rc = view_next(v, dir, &pos, &e, err)) == 1)
		++*n;
	return rc;
}

/* Check that a parameter's directory has exactly these files. */
static int check_param(struct view *v, const char *name, const struct bytebuf *want, size_t n,
		       struct dice *d, struct errmsg *err)
{
	struct errmsg why = { "" };
	uint64_t dir;
	size_t there;
	int rc = view_lookup(v, VIEW_ZERO, name, &dir, &why);

	if (!rc)
		rc = count_entries(v, dir, &there, &why);
	if (!rc && there != n)
		rc = errmsg_set(&why, WRONG, "%zu files instead of %zu", there, n);
	for (size_t i = 0; !rc && i < n; i++) {
		rc = check_file(v, dir, world_file_names[i], &want[i], d, &why);
		if (rc)
			errmsg_set(err, rc, "%s/%s.pt: %s (%d)", name, world_file_names[i],
				   why.text, rc);
	}
	if (rc && !err->text[0])
		errmsg_set(err, rc, "%s: %s (%d)", name, why.text, rc);
	return rc;
}

static int check_tensor(const struct world *w, const struct world_tensor *t, struct view *v,
			struct dice *d, struct errmsg *err)
{
	const size_t n = world_nfiles(w, t);
	struct bytebuf want[WORLD_FILES] = { 0 };
	uint64_t node;
	int rc;

	if (n == 0)
		return view_lookup(v, VIEW_ZERO, t->name, &node, err) == -ENOENT
			       ? 0
			       : errmsg_set(err, WRONG, "%s: is there", t->name);
	for (size_t i = 0; i < n; i++)
		world_file(w, t, i, &want[i]);
	rc = check_param(v, t->name, want, n, d, err);
	for (size_t i = 0; i < n; i++)
		bytebuf_done(&want[i]);
	return rc;
}

static int check_extra(const struct world *w, const struct world_extra *e, struct view *v,
		       struct dice *d, struct errmsg *err)
{
	struct bytebuf want = { 0 };
	int rc;

	world_extra_file(w, e, &want);
	rc = check_param(v, e->name, &want, 1, d, err);
	bytebuf_done(&want);
	return rc;
}

static int check_tree(const struct world *w, struct view *v, struct dice *d, struct errmsg *err)
{
	size_t n, expected = 1 + w->nextras; /* one for optimizer_state.pt */
	int rc = count_entries(v, VIEW_ZERO, &n, err);

	for (size_t i = 0; i < w->n; i++)
		expected += world_nfiles(w, &w->v[i]) > 0;
	if (!rc && n != expected)
		rc = errmsg_set(err, WRONG, "%zu entries instead of %zu", n, expected);
	for (size_t i = 0; !rc && i < w->n; i++)
		rc = check_tensor(w, &w->v[i], v, d, err);
	for (size_t i = 0; !rc && i < w->nextras; i++)
		rc = check_extra(w, &w->extras[i], v, d, err);
	/* Sometimes check other kinds of files. */
	if (!rc && roll(d, 8) == 0)
		rc = walk_view(v, err);
	return rc;
}

/* Weights of the same tag are right, or an error says why not: tensors of modules that
 * tensor-parallel ranks do not share. */
static int check_weights(struct view *universal, struct dice *d, struct errmsg *err)
{
	struct view *v;
	const struct view_type type = { .kind = roll(d, 2) ? VIEW_HF : VIEW_FP32 };
	int rc = view_open_derived(universal, &type, &v, err);

	if (rc)
		return rc == -ENOTSUP && strstr(err->text, "differs between ranks") ? 0 : rc;
	rc = view_check(v, err);
	if (!rc)
		rc = walk_view(v, err);
	view_close(v);
	return rc;
}

/* A re-cut checkpoint makes the same tree. */
static int check_recut(const struct world *w, const char *tag, const struct view_options *options,
		       struct dice *d, struct errmsg *err)
{
	char *dir = mkckpt_new_dir();
	const unsigned ranks = 1 + (unsigned)roll(d, 2 * RANKS_MAX);
	struct view *v;
	int rc = recut_open(tag, ranks, 0, &v, err);

	if (!rc) {
		rc = recut_write(v, dir, err);
		view_close(v);
	}
	if (!rc)
		rc = view_open(test_context(), dir, options, &v, err);
	if (!rc) {
		view_checkpoint(v)->read_threads = 1;
		rc = check_tree(w, v, d, err);
		view_close(v);
	}
	mkckpt_free_dir(dir);
	return rc;
}

static int check_world(const struct world *w, struct dice *d, struct errmsg *err)
{
	static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
	const struct view_options options = {
		.any_stage = w->any_stage,
		.dtype = types[w->seed % 3],
		.shard_size = w->seed % 4 ? 0 : 1 + w->seed % 1000,
	};
	char *dir = mkckpt_new_dir();
	struct view *v;
	int rc;

	world_write(w, dir);
	rc = view_open(test_context(), dir, &options, &v, err);
	if (!rc) {
		/* Whole geometries already run in parallel. */
		view_checkpoint(v)->read_threads = 1;
		rc = check_tree(w, v, d, err);
		if (!rc && roll(d, 8) == 0)
			rc = check_weights(v, d, err);
		view_close(v);
	}
	if (!rc && roll(d, 4) == 0)
		rc = check_recut(w, dir, &options, d, err);
	mkckpt_free_dir(dir);
	return rc;
}

struct range {
	uint64_t first, last;
};

static int check_number(const struct range *range, uint64_t number)
{
	struct dice d = { .state = number * UINT64_C(0xd1342543de82ef95) };
	struct world w = { .seed = number };
	struct errmsg err = { "" };
	int rc;

	make_world(&w, &d);
	if (range->first == range->last)
		describe(&w);
	rc = check_world(&w, &d, &err);
	if (rc)
		print_error("geometry %llu: %s\n", (unsigned long long)number, err.text);
	world_done(&w);
	return rc;
}

/* Check every `n`th number, starting with the `i`-th. */
static bool check_share(const struct range *range, unsigned i, unsigned n)
{
	const uint64_t numbers = range->last - range->first + 1;

	for (uint64_t k = i; k < numbers; k += n)
		if (check_number(range, range->first + k))
			return false;
	return true;
}

/* Use processes: threads share an address space, in which a sanitizer's system calls take half of
 * the time. */
static unsigned check_all(const struct range *range)
{
	const unsigned n = parallel_width();
	unsigned failed = 0;
	int status;

	fflush(NULL);
	for (unsigned i = 0; i < n; i++) {
		const pid_t child = fork();

		assert_true(child >= 0);
		if (child == 0)
			exit(check_share(range, i, n) ? EXIT_SUCCESS : EXIT_FAILURE);
	}
	for (unsigned i = 0; i < n; i++) {
		assert_true(wait(&status) > 0);
		failed += status != 0;
	}
	return failed;
}

static struct range get_range(void)
{
	const char *s = getenv("UCFS_GEOMETRIES");
	struct range r = { 1, GEOMETRIES / sampled_step(3) };
	char *end;

	if (!s)
		return r;
	r.first = r.last = strtoull(s, &end, 10);
	if (*end == '-')
		r.last = strtoull(end + 1, &end, 10);
	if (end == s || *end || r.last < r.first)
		fail_msg("UCFS_GEOMETRIES=%s: expected NUMBER or FIRST-LAST", s);
	return r;
}

static void files_are_those_of_the_whole_tensors(void **state)
{
	struct range r = get_range();

	print_message("geometries %llu to %llu\n", (unsigned long long)r.first,
		      (unsigned long long)r.last);
	assert_int_equal(check_all(&r), 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_are_those_of_the_whole_tensors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
