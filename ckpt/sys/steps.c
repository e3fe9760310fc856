/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/sys/steps.h"

#include "ckpt/base/progress.h"

struct steps {
	const struct uckpt *u;
	const char *what;
	size_t n;
	parallel_work *work;
	void *ctx;
	atomic_size_t done;
};

static int make_step(void *ctx, size_t i, struct errmsg *err)
{
	struct steps *s = ctx;
	const int rc = s->work(s->ctx, i, err);

	progress_step(s->u, s->what, atomic_fetch_add(&s->done, 1) + 1, s->n);
	return rc;
}

int steps_run(const struct uckpt *u, const char *what, parallel_loop *loop, size_t n,
	      unsigned width, parallel_work *work, void *ctx, struct errmsg *err)
{
	struct steps s = { u, what, n, work, ctx, 0 };

	if (n)
		progress_step(u, what, 0, n);
	return loop(n, width, make_step, &s, err);
}
