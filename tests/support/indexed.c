/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/indexed.h"

#include "tests/support/unit.h"
#include "tests/support/walk.h"

static const struct plan_options options = { .crc_zero = false };

void indexed_write(struct indexed *x, void (*edit)(struct zero_checkpoint *r))
{
	struct errmsg err = { "" };
	struct plan *p = NULL;

	bytebuf_done(&x->index);
	if (plan_open(x->dir, &options, &p, &err) || walk_plan(p, &err))
		fail_msg("%s", err.text);
	if (edit)
		edit(plan_zckpt(p));
	assert_int_equal(plan_index(p, &x->index, &err), 1);
	plan_close(p);
}

struct indexed indexed_make(int stage)
{
	struct indexed x = { .c = mkckpt_small(stage), .dir = mkckpt_new_dir() };

	x.c.align = 1;
	mkckpt_write(&x.c, x.dir);
	indexed_write(&x, NULL);
	return x;
}

void indexed_done(struct indexed *x)
{
	bytebuf_done(&x->index);
	mkckpt_free_dir(x->dir);
}

bool indexed_is_used(const struct indexed *x, struct plan **p,
		     struct errmsg *refused)
{
	struct errmsg err = { "" };

	*refused = (struct errmsg){ "" };
	if (plan_open_indexed(x->dir, &options,
			      (struct span){ x->index.data, x->index.len }, p,
			      refused, &err))
		fail_msg("%s", err.text);
	return !*refused->text;
}

void indexed_check(const struct indexed *x, struct plan *p)
{
	char why[400] = "";

	if (!mkckpt_check(&x->c, p, why, sizeof(why)))
		fail_msg("%s", why);
}
