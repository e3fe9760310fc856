/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt diff: compares two checkpoints and reports how far they differ.
 *
 * Parameters are matched by name and compared in parallel, a chunk at a time.
 * Three things are notes rather than differences unless --strict is given: a
 * state that one side lacks for all parameters (the step, in a tree of ZeRO-3),
 * equal values of different types, and a tied parameter that one side stores
 * under one name only.
 */
#include <assert.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/cmd/cmd.h"
#include "ckpt/diff/diff.h"
#include "ckpt/format/state.h"
#include "ckpt/sys/parallel.h"

/* Return the name under which the side without `p->name` stores the tied
 * parameter, or NULL. */
static const char *find_tied(struct diff *d, const struct diff_param *p)
{
	const struct diff_tree *const without = &d->tree[p->has[0]];
	const char *name = NULL;

	for (unsigned side = 0; !name && side < 2; side++)
		name = diff_tree_tied(&d->tree[side], p->name, without);
	return name;
}

static int match_params(struct diff *d, struct errmsg *err)
{
	const struct diff_tree *const a = &d->tree[0], *const b = &d->tree[1];
	size_t i = 0, j = 0;

	d->params = calloc(a->n + b->n + 1, sizeof(*d->params));
	if (!d->params)
		return errmsg_nomem(err, NULL);
	while (i < a->n || j < b->n) {
		struct diff_param *const p = &d->params[d->nparams++];
		const int order = i == a->n   ? 1
				  : j == b->n ? -1
					      : strcmp(a->v[i].name,
						       b->v[j].name);

		p->has[0] = order <= 0;
		p->has[1] = order >= 0;
		p->name = p->has[0] ? a->v[i].name : b->v[j].name;
		i += p->has[0];
		j += p->has[1];
		if (order)
			p->tied = find_tied(d, p);
	}
	assert(d->nparams <= a->n + b->n);
	return 0;
}

static int compare_state(struct diff *d, const struct diff_param *p,
			 struct diff_state *s, struct errmsg *err)
{
	struct state a, b;
	int rc = diff_tree_open_state(&d->tree[0], diff_name_in(p, 0), s->name,
				      &a, err);

	if (rc)
		return rc;
	rc = diff_tree_open_state(&d->tree[1], diff_name_in(p, 1), s->name, &b,
				  err);
	if (!rc) {
		rc = diff_compare(&a, &b, s, err);
		state_close(&b);
	}
	state_close(&a);
	return rc;
}

/* List the states of both sides.  If a parameter is matched by a tie, states
 * that only the side with the other name has are left out. */
static int match_states(struct diff *d, struct diff_param *p, struct errmsg *err)
{
	struct diff_states a, b;
	unsigned i = 0, j = 0;
	int rc = diff_tree_states(&d->tree[0], diff_name_in(p, 0), &a, err);

	if (!rc)
		rc = diff_tree_states(&d->tree[1], diff_name_in(p, 1), &b, err);
	if (rc)
		return rc;
	p->states = calloc(a.n + b.n + 1, sizeof(*p->states));
	if (!p->states)
		return errmsg_nomem(err, NULL);
	while (i < a.n || j < b.n) {
		struct diff_state *const s = &p->states[p->nstates];
		const int order = i == a.n   ? 1
				  : j == b.n ? -1
					     : diff_compare_states(
						       a.name[i], b.name[j]);

		p->nstates += !order || p->has[order > 0];
		s->kind = order < 0   ? DIFF_ONLY_A
			  : order > 0 ? DIFF_ONLY_B
				      : DIFF_NONE;
		memcpy(s->name, order <= 0 ? a.name[i] : b.name[j],
		       sizeof(s->name));
		i += order <= 0;
		j += order >= 0;
	}
	return 0;
}

static int compare_param(void *ctx, size_t i, struct errmsg *err)
{
	struct diff *const d = ctx;
	struct diff_param *const p = &d->params[i];
	int rc;

	if (!diff_name_in(p, 0) || !diff_name_in(p, 1))
		return 0;
	rc = match_states(d, p, err);
	for (size_t k = 0; !rc && k < p->nstates; k++)
		if (p->states[k].kind == DIFF_NONE)
			rc = compare_state(d, p, &p->states[k], err);
	return rc;
}

static int compare_all(struct diff *d, struct errmsg *err)
{
	return match_params(d, err)
		       ?: parallel_far(d->nparams, parallel_width(),
				       compare_param, d, err);
}

static void diff_done(struct diff *d)
{
	for (size_t i = 0; i < d->nparams; i++) {
		const struct diff_param *const p = &d->params[i];

		for (size_t k = 0; k < p->nstates; k++) {
			free(p->states[k].shape[0]);
			free(p->states[k].shape[1]);
			free(p->states[k].place);
		}
		free(p->states);
	}
	free(d->params);
	diff_tree_close(&d->tree[0]);
	diff_tree_close(&d->tree[1]);
}

/* Returns CMD_OK or CMD_TROUBLE. */
static int open_side(struct diff *d, unsigned side, char *arg)
{
	struct errmsg err = { "" };
	char *const path = cmd_source(&arg, 1);
	int rc = CMD_TROUBLE;

	if (!path)
		return CMD_TROUBLE;
	if (diff_tree_open(&d->tree[side], path, &err))
		cmd_say("%s", err.text);
	else
		rc = CMD_OK;
	free(path);
	return rc;
}

static int diff(struct diff *d, char *const args[2], bool json, bool all)
{
	struct errmsg err = { "" };
	int rc = 0;

	if (open_side(d, 0, args[0]) || open_side(d, 1, args[1]))
		return CMD_TROUBLE;
	for (unsigned side = 0; !rc && side < 2; side++)
		rc = diff_tree_match(&d->tree[side], &d->tree[!side], &err);
	if (!rc)
		rc = compare_all(d, &err);
	if (rc) {
		cmd_say("%s", err.text);
		return CMD_TROUBLE;
	}
	diff_judge(d);
	if (!json)
		diff_print_text(d, all);
	else if (diff_print_json(d, all) != CMD_OK)
		return CMD_TROUBLE;
	return d->equal ? CMD_OK : CMD_DIFFER;
}

int cmd_diff(int argc, char **argv)
{
	struct diff d = { 0 };
	bool json = false, all = false;
	const struct cmd_option options[] = {
		{ "all", .help = "print all states, not only those that differ",
		  .flag = &all },
		{ "json", .help = "print JSON", .flag = &json },
		{ "strict",
		  .help = "count as differences also equal values of different types, states\n"
			  "that one side lacks for all parameters, and tied parameters that\n"
			  "one side stores once",
		  .flag = &d.strict },
	};
	const struct cmd_syntax syntax = {
		"usage: ucckpt diff [OPTION]... A B\n"
		"\n"
		"Compare two checkpoints, parameter by parameter and state by state.  Each is a\n"
		"ZeRO checkpoint (the directory of a tag, or of a run for its newest tag), a\n"
		"universal checkpoint or a Hugging Face model, on a disk or mounted.  '{A,B}'\n"
		"is one whose files are spread over A and B.",
		"Exit status: 0 equal, 1 different, 2 trouble.",
		options, COUNT(options), 2, "A and B",
	};
	int status;

	if (cmd_parse(argc, argv, &syntax, &status)) {
		status = diff(&d, argv + optind, json, all);
		diff_done(&d);
	}
	return status;
}
