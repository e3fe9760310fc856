/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that the checkpoint can be converted to each form that `ucckpt
 * convert` writes: the form's tree is planned and each of its files opened.
 * Damage that only one form meets, such as in the model-states files that
 * weights are read from, is a problem of the checkpoint.  A form that is not
 * supported for this checkpoint is a note, and is left out of `c->forms`.
 */
#include <assert.h>
#include <errno.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/check/check.h"
#include "ckpt/plan/plan.h"
#include "ckpt/reshard/reshard.h"
#include "ckpt/zero/checkpoint.h"

static const struct form {
	const char *name; /* options of convert */
	enum plan_kind kind;
	bool any_stage;
} forms[] = {
	{ "--to universal", PLAN_UNIVERSAL, false },
	{ "--to universal --stage any", PLAN_UNIVERSAL, true },
	{ "--to hf", PLAN_HF, false },
	{ "--to fp32", PLAN_FP32, false },
	{ "--to zero", PLAN_RESHARD, false },
};

#define WEIGHTS_FORMS 2 /* those of Hugging Face weights come first */

/* A number of ranks for which every file has to be cut again.  It is a multiple
 * of the old number, as expert parallelism requires. */
static unsigned other_ranks(const struct check *c)
{
	const unsigned dp = plan_zckpt(c->plan)->dir.dp_degree;

	return dp <= RESHARD_RANKS_MAX / 2 ? 2 * dp : dp;
}

static int form_open(const struct check *c, const struct form *f,
		     struct plan **out, struct errmsg *err)
{
	const struct plan_options options = { .crc_zero = true,
					      .any_stage = f->any_stage,
					      .hugging_face = true };

	return f->kind == PLAN_UNIVERSAL
		       ? plan_open(c->dir, &options, out, err)
		       : plan_open_derived(c->plan, f->kind, other_ranks(c), 0,
					   out, err);
}

static int form_check(const struct check *c, const struct form *f,
		      struct findings *why)
{
	struct errmsg err = { "" };
	uint64_t opened;
	struct plan *p;
	int rc = form_open(c, f, &p, &err);

	if (!rc) {
		rc = plan_check(p, &err);
		if (!rc)
			rc = check_tree(c, p, &opened, why);
		plan_close(p);
	}
	findings_add_new(why, err.text);
	return rc;
}

void check_forms(struct check *c)
{
	const size_t n = plan_zckpt(c->plan) ? COUNT(forms) : WEIGHTS_FORMS;

	assert(c->plan && !c->problems.n);
	/* check_ranks has opened the universal tree. */
	findings_add(&c->forms, "%s", forms[0].name);
	for (size_t i = 1; i < n; i++) {
		struct findings why = { 0 };
		const int rc = form_check(c, &forms[i], &why);

		if (!rc)
			findings_add(&c->forms, "%s", forms[i].name);
		for (size_t k = 0; rc && k < why.n; k++)
			findings_add(rc == -ENOTSUP ? &c->notes : &c->problems,
				     rc == -ENOTSUP ?
					     "%s (convert %s is not possible)" :
					     "%s (needed by convert %s)",
				     why.v[k], forms[i].name);
		findings_done(&why);
	}
}
