/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens every file of a planned tree, which lays out all of its extents and
 * checks its sources, and compares its size with the one in its attributes.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/check/check.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/zero/checkpoint.h"

struct tree {
	const struct check *c;
	struct plan *plan;
	struct plan_entry *v; /* entries of /zero */
	size_t n, cap;
	pthread_mutex_t lock; /* protects the fields below */
	struct findings problems;
	uint64_t opened; /* files */
	int rc;		 /* of the first failure */
};

static void check_tree_report(struct tree *t, int rc, const char *text)
{
	assert(rc < 0);
	pthread_mutex_lock(&t->lock);
	findings_add_new(&t->problems, text);
	if (!t->rc)
		t->rc = rc;
	pthread_mutex_unlock(&t->lock);
}

static void open_node(struct tree *t, uint64_t node, const char *name)
{
	struct errmsg err = { "" };
	struct plan_stat st;
	struct vfile *f;
	int rc = plan_stat(t->plan, node, &st, &err);

	if (!rc)
		rc = plan_file_open(t->plan, node, &f, &err);
	if (rc) {
		check_tree_report(t, rc, err.text);
		return;
	}
	if (vfile_size(f) != st.size) {
		rc = errmsg_set(&err, -EIO,
				"%s: has %" PRIu64 " bytes when opened, but"
				" %" PRIu64 " in its attributes",
				name, vfile_size(f), st.size);
		check_tree_report(t, rc, err.text);
	}
	vfile_free(f);
	pthread_mutex_lock(&t->lock);
	t->opened++;
	pthread_mutex_unlock(&t->lock);
}

static void open_dir(struct tree *t, uint64_t dir)
{
	struct errmsg err = { "" };
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(t->plan, dir, &pos, &e, &err)) == 1)
		if (!plan_is_dir(t->plan, e.node))
			open_node(t, e.node, e.name);
	if (rc)
		check_tree_report(t, rc, err.text);
}

/* Parameters with damaged shards have been reported already. */
static bool has_shards(const struct check *c, const char *name)
{
	const struct zero_checkpoint *const r = plan_zckpt(c->plan);
	const struct param *const p = r ? model_find(&r->model, name) : NULL;

	for (unsigned t = 0; p && !p->module && t < p->nslices; t++)
		if (p->slices[t] && !c->whole[p->slices[t]->mp])
			return false;
	return true;
}

static int open_entry(void *ctx, size_t i, struct errmsg *err)
{
	struct tree *const t = ctx;
	const struct plan_entry *const e = &t->v[i];

	(void)err;
	if (!plan_is_dir(t->plan, e->node)) {
		/* optimizer_state.pt is made of rank 0's shard. */
		if (!t->c->whole || t->c->whole[0])
			open_node(t, e->node, e->name);
	} else if (has_shards(t->c, e->name)) {
		open_dir(t, e->node);
	}
	return 0;
}

static int list_zero(struct tree *t)
{
	struct plan_entry e;
	uint64_t pos = 0;

	if (!plan_is_dir(t->plan, PLAN_ZERO))
		return 0;
	while (plan_next(t->plan, PLAN_ZERO, &pos, &e, NULL) == 1) {
		if (!array_reserve(&t->v, &t->cap, t->n + 1, sizeof(*t->v)))
			return -ENOMEM;
		t->v[t->n++] = e;
	}
	return 0;
}

int check_tree(const struct check *c, struct plan *p, uint64_t *opened,
	       struct findings *problems)
{
	struct tree t = { .c = c, .plan = p };

	pthread_mutex_init(&t.lock, NULL);
	if (list_zero(&t))
		check_tree_report(&t, -ENOMEM, "out of memory");
	open_dir(&t, PLAN_ROOT);
	parallel_for(t.n, parallel_width(), open_entry, &t, NULL);
	findings_take(problems, &t.problems);
	*opened = t.opened;
	pthread_mutex_destroy(&t.lock);
	free(t.v);
	return t.rc;
}
