/* SPDX-License-Identifier: Apache-2.0 */
/* ucckpt diff: the report as text. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/cmd/cmd.h"
#include "ckpt/diff/diff.h"
#include "ckpt/tensor/cast.h"

static void print_types(const struct diff_state *s)
{
	printf("%s in A, %s in B", dtype_name(s->dtype[0]),
	       dtype_name(s->dtype[1]));
}

static void print_values(const struct diff_state *s)
{
	const struct diff_values *const v = &s->values;

	printf("%" PRIu64 " of %" PRIu64 " elements differ", v->differ,
	       v->numel);
	if (v->odd < v->differ)
		printf(", by up to %.3g (relative %.3g)", v->max_abs,
		       v->max_rel);
	if (v->odd && cast_knows(s->dtype[0]))
		printf(", %" PRIu64 " of them NaN or infinite", v->odd);
	printf(", the first at %s", s->place);
	if (s->dtype[0] != s->dtype[1]) {
		printf(", ");
		print_types(s);
	}
}

static void print_state(const struct diff_param *p, const struct diff_state *s)
{
	cmd_put(p->name);
	putchar(' ');
	cmd_put(s->name);
	printf(": ");
	switch (s->kind) {
	case DIFF_NONE:
		printf("the same");
		if (s->dtype[0] != s->dtype[1]) {
			printf(", ");
			print_types(s);
		}
		break;
	case DIFF_VALUES:
		print_values(s);
		break;
	case DIFF_SHAPE:
		printf("shape %s in A, %s in B", s->shape[0], s->shape[1]);
		break;
	case DIFF_TYPE:
		print_types(s);
		break;
	case DIFF_ONLY_A:
		printf("only in A");
		break;
	case DIFF_ONLY_B:
		printf("only in B");
		break;
	}
	if (p->tied) {
		printf(", as ");
		cmd_put(p->tied);
		printf(" in %c", "AB"[p->has[0]]);
	}
	putchar('\n');
}

static void print_param(const struct diff_param *p, bool all)
{
	if (!diff_name_in(p, 0) || !diff_name_in(p, 1)) {
		cmd_put(p->name);
		printf(": only in %c\n", p->has[0] ? 'A' : 'B');
	}
	for (size_t i = 0; i < p->nstates; i++)
		if (all || p->states[i].counts)
			print_state(p, &p->states[i]);
}

/* Print once what holds for many states. */
static void print_notes(const struct diff *d)
{
	for (unsigned side = 0; side < 2; side++) {
		const char *comma = "";

		for (size_t i = 0; i < d->nnames; i++) {
			if (d->names[i].has[side])
				continue;
			if (!*comma)
				printf("note: %c has no ", "AB"[side]);
			printf("%s", comma);
			cmd_put(d->names[i].name);
			comma = ", ";
		}
		if (*comma)
			putchar('\n');
	}
	for (unsigned side = 0; side < 2; side++)
		if (d->tied[side])
			printf("note: %c stores tied parameters once, under another"
			       " name: %" PRIu64 "\n",
			       'A' + (int)side, d->tied[side]);
	if (d->types)
		printf("note: states with equal values of different types: "
		       "%" PRIu64 "\n",
		       d->types);
}

static void print_verdict(const struct diff *d)
{
	printf("%s: ", d->equal ? "equal" : "different");
	if (!d->equal)
		printf("%" PRIu64 " of ", d->differ);
	printf("%" PRIu64 " states of %" PRIu64 " parameters", d->states,
	       d->common);
	if (d->worst.max_abs > 0)
		printf(", by up to %.3g (relative %.3g)", d->worst.max_abs,
		       d->worst.max_rel);
	for (unsigned side = 0; side < 2; side++)
		if (d->only[side])
			printf("; %" PRIu64 " parameters only in %c",
			       d->only[side], "AB"[side]);
	if (!d->equal && !d->differ && !d->only[0] && !d->only[1])
		printf("; the notes count as differences (--strict)");
	putchar('\n');
}

void diff_print_text(const struct diff *d, bool all)
{
	for (unsigned side = 0; side < 2; side++) {
		printf("%c: ", "AB"[side]);
		cmd_put(d->tree[side].path);
		printf(" (%s)\n", d->tree[side].kind);
	}
	for (size_t i = 0; i < d->nparams; i++)
		print_param(&d->params[i], all);
	print_notes(d);
	print_verdict(d);
}
