/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mount stops at the first problem, which is all that it needs to know; who
 * has to repair or fetch again wants the whole list.  So here every file is
 * read by itself, also when others are damaged.
 *
 * Of a directory whose files do not make up a checkpoint: which are missing?
 * How many ranks there were is told by the highest one that left a file, or by
 * a model-states file that can still be read (dp_world_size).
 */
#include "ckpt/cmd/diagnose.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/cmd/findings.h"
#include "ckpt/dirs/names.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/plan/plan.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/pickle/value.h"

/* Missing files are listed one by one up to here. */
#define MISSING_MAX 100

const char *survey_choice_text(enum tags_choice choice)
{
	switch (choice) {
	case TAGS_ITSELF: break;
	case TAGS_LATEST: return "named by latest";
	case TAGS_STEP: return "the highest step";
	case TAGS_MTIME: return "the last changed";
	case TAGS_NONE: return "no ZeRO checkpoint";
	}
	return "";
}

/* `latest` may name a tag that is gone, or not of ZeRO. */
void survey_choice(const char *run, enum tags_choice choice,
		   struct lines *warnings)
{
	struct tag_list tags;

	if (choice == TAGS_NONE && tags_exist_below(run))
		lines_add(warnings,
			  "%s: there are checkpoints further down: name the"
			  " directory that they are in", run);
	if (choice != TAGS_STEP && choice != TAGS_MTIME)
		return;
	if (tags_list(run, &tags, NULL))
		return;
	if (tags.latest)
		lines_add(warnings,
			  "%s/latest names %s, which is no ZeRO checkpoint",
			  run, tags.latest);
	tags_done(&tags);
}

/* --- what is missing -------------------------------------------------------- */

struct survey {
	const char *dir;
	struct lines *problems;
	struct ckname *found; /* ranks' files, sorted */
	size_t n;
	unsigned dp, mp; /* degrees, as far as files tell */
	bool zero3;
	const char *prefix; /* of optimizer shards' names */
	size_t missing;
};

static void read_degree(struct survey *s, const struct value *root)
{
	int64_t n;

	if (value_get_int(value_find(root, "dp_world_size"), &n) &&
	    n > s->dp && n <= NAMES_RANK_MAX)
		s->dp = (unsigned)n;
}

/* Can the file be read?  If so, learn from it. */
static void try_file(struct survey *s, const char *name,
		     enum ckfile_kind kind)
{
	struct errmsg err = { "" };
	struct ptfile pt;
	char *path;

	if (asprintf(&path, "%s/%s", s->dir, name) < 0)
		return;
	if (ptfile_open(&pt, path, &err)) {
		lines_add_new(s->problems, err.text);
	} else {
		if (kind != CKFILE_OPTIM)
			read_degree(s, pt.root);
		ptfile_close(&pt);
	}
	free(path);
}

static void look_at(struct survey *s, const char *name)
{
	const struct ckname id = names_parse(name);

	if (id.kind != CKFILE_OPTIM && id.kind != CKFILE_MODEL &&
	    id.kind != CKFILE_MODEL3)
		return;
	s->found[s->n++] = id;
	if (id.dp >= s->dp)
		s->dp = id.dp + 1;
	if (id.mp >= s->mp)
		s->mp = id.mp + 1;
	if (id.kind == CKFILE_MODEL3)
		s->zero3 = true;
	if (id.kind == CKFILE_OPTIM && strncmp(name, "bf16_", 5) == 0)
		s->prefix = "bf16_";
	try_file(s, name, id.kind);
}

static int by_place(const void *a, const void *b)
{
	const struct ckname *const x = a, *const y = b;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	if (x->mp != y->mp)
		return x->mp < y->mp ? -1 : 1;
	return x->dp < y->dp ? -1 : x->dp > y->dp;
}

static bool exists(const struct survey *s, enum ckfile_kind kind, unsigned mp,
		   unsigned dp)
{
	const struct ckname key = { .kind = kind, .mp = mp, .dp = dp };

	return bsearch(&key, s->found, s->n, sizeof(key), by_place);
}

static void tell_missing(struct survey *s, const char *name)
{
	if (s->missing++ < MISSING_MAX)
		lines_add(s->problems, "%s/%s: missing", s->dir, name);
}

static void find_missing_of(struct survey *s, unsigned mp, unsigned dp)
{
	char name[128];

	if (!exists(s, CKFILE_OPTIM, mp, dp)) {
		snprintf(name, sizeof(name),
			 "%szero_pp_rank_%u_mp_rank_%02u_optim_states.pt",
			 s->prefix, dp, mp);
		tell_missing(s, name);
	}
	if (s->zero3 && !exists(s, CKFILE_MODEL3, mp, dp)) {
		snprintf(name, sizeof(name),
			 "zero_pp_rank_%u_mp_rank_%02u_model_states.pt", dp,
			 mp);
		tell_missing(s, name);
	}
	if (!s->zero3 && dp == 0 && !exists(s, CKFILE_MODEL, mp, 0)) {
		snprintf(name, sizeof(name), "mp_rank_%02u_model_states.pt",
			 mp);
		tell_missing(s, name);
	}
}

/* Stops early: a stray file may claim to be of rank 999999. */
static void find_missing(struct survey *s)
{
	for (unsigned mp = 0; mp < s->mp; mp++)
		for (unsigned dp = 0; dp < s->dp; dp++) {
			if (s->missing >= MISSING_MAX) {
				lines_add(s->problems,
					  "%s: more files are missing",
					  s->dir);
				return;
			}
			find_missing_of(s, mp, dp);
		}
}

void survey_missing(const char *dir, struct lines *problems)
{
	struct survey s = { .dir = dir, .problems = problems, .prefix = "" };
	struct dirent **entries;
	const int n = scandir(dir, &entries, NULL, alphasort);

	if (n < 0)
		return;
	s.found = calloc((size_t)n + 1, sizeof(*s.found));
	for (int i = 0; i < n; i++) {
		if (s.found)
			look_at(&s, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
	if (s.n) {
		qsort(s.found, s.n, sizeof(*s.found), by_place);
		find_missing(&s);
	}
	free(s.found);
}

/* --- files of a checkpoint that can be planned ------------------------------- */

struct checking {
	struct plan *plan;
	struct resolve *r;
	struct errmsg *err; /* of each file */
};

/* A shard by itself, when the first of its model-parallel rank, which the
 * others are compared with, is of no help. */
static int check_alone(struct resolve *r, unsigned i, struct errmsg *err)
{
	const unsigned mp = i / r->dir.dp_degree;
	struct layout layout = { .ranks = r->dir.dp_degree };
	struct shard s;
	const int rc =
		shard_load(&s, &r->dir, i, &r->model.cats[mp], &layout, err);

	if (!rc)
		shard_done(&s);
	layout_done(&layout);
	return rc;
}

static int check_shard(struct resolve *r, unsigned i, struct errmsg *err)
{
	const unsigned mp = i / r->dir.dp_degree, rank = i % r->dir.dp_degree;

	if (!resolve_shard(r, mp, 0))
		return check_alone(r, i, err);
	return resolve_shards(r, mp, rank, rank + 1, 1, err);
}

static int check_shard_indexed(void *ctx, size_t i)
{
	struct checking *const c = ctx;

	check_shard(c->r, (unsigned)i, &c->err[i]);
	return 0; /* go on with the others */
}

/* `check` each of `n` files. */
static void check_each(struct plan *plan, size_t n,
		       int (*check)(void *ctx, size_t i),
		       struct lines *problems)
{
	struct checking c = { .plan = plan,
			      .r = plan_resolve(plan),
			      .err = calloc(n + 1, sizeof(*c.err)) };

	if (!c.err) {
		lines_add(problems, "out of memory");
		return;
	}
	parallel_for(n, parallel_width(), check, &c);
	for (size_t i = 0; i < n; i++)
		lines_add_new(problems, c.err[i].text);
	free(c.err);
}

void survey_shards(struct plan *plan, struct lines *problems)
{
	struct resolve *const r = plan_resolve(plan);

	/* The parallel way to what is below, if all are well. */
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++)
		resolve_shards(r, mp, 0, r->dir.dp_degree, 1, NULL);
	check_each(plan, r->dir.noptim, check_shard_indexed, problems);
}

/* Has the rank the experts that its place among the ranks calls for? */
static int check_ep(const struct resolve *r, const char *path,
		    const struct expert_layer *l, struct errmsg *err)
{
	const unsigned degree = experts_degree(l);
	const struct spread spread = {
		.ranks = r->dir.dp_degree / degree,
		.degree = degree,
		.data_first = r->model.cats[0].experts.data_first,
	};
	const unsigned dp = names_parse(strrchr(path, '/') + 1).dp;
	unsigned ep;

	spread_part(&spread, dp, &ep);
	if (!l->fused || l->ep < 0 || l->ep == ep)
		return 0;
	return errmsg_set(err, -EBADMSG,
			  "%s: is of expert-parallel rank %" PRId64 " (%s), but"
			  " data-parallel rank %u is rank %u of %u", path,
			  l->ep, l->prefix, dp, ep, degree);
}

static int check_layers(const struct resolve *r, const char *path,
			const struct value *root, struct errmsg *err)
{
	const struct catalogue *const c = &r->model.cats[0];
	struct arena a = { 0 };
	struct experts x;
	int rc = experts_init(&x, &a, root, c->zero3, path, err);

	if (!rc && !experts_equal(&x, &c->experts))
		rc = errmsg_set(err, -EBADMSG,
				"%s: tells of other experts than %s", path,
				r->dir.model[0].name);
	for (size_t i = 0; !rc && i < x.n; i++)
		rc = check_ep(r, path, &x.layers[i], err);
	arena_done(&a);
	return rc;
}

int survey_facts(struct plan *plan, const char *path, const struct value *root,
		 struct errmsg *err)
{
	const struct resolve *const r = plan_resolve(plan);
	const struct catalogue *const c = &r->model.cats[0];
	const struct value *const version = value_find(root, KEY_DS_VERSION);
	int64_t step;

	if (value_get_int(value_find(root, "global_steps"), &step) &&
	    c->global_steps >= 0 && step != c->global_steps)
		return errmsg_set(err, -EBADMSG,
				  "%s: is of global step %" PRId64 ", %s of %"
				  PRId64 ": not one checkpoint", path, step,
				  r->dir.model[0].name, c->global_steps);
	if (value_is_cstr(version) && *c->ds_version &&
	    strcmp(version->str.p, c->ds_version) != 0)
		return errmsg_set(err, -EBADMSG,
				  "%s: was written by DeepSpeed %.20s, %s by"
				  " %.20s: not one checkpoint", path,
				  version->str.p, r->dir.model[0].name,
				  c->ds_version);
	return check_layers(r, path, root, err);
}

static int check_model(void *ctx, size_t i)
{
	struct checking *const c = ctx;
	const struct ckfile *const f = &c->r->dir.model[i];
	struct ptfile pt;

	if (ckdir_open_file(f, &pt, &c->err[i]))
		return 0;
	survey_facts(c->plan, f->path, pt.root, &c->err[i]);
	ptfile_close(&pt);
	return 0;
}

void survey_models(struct plan *plan, struct lines *problems)
{
	check_each(plan, plan_resolve(plan)->dir.nmodel, check_model, problems);
}

static int check_expert(void *ctx, size_t i)
{
	struct checking *const c = ctx;

	catalogue_check_expert(&c->r->model.cats[0], &c->r->dir.expert[i],
			       &c->err[i]);
	return 0;
}

void survey_experts(struct plan *plan, struct lines *problems)
{
	check_each(plan, plan_resolve(plan)->dir.nexpert, check_expert,
		   problems);
}

/* --- what is only odd -------------------------------------------------------- */

void survey_warnings(struct plan *plan, struct lines *warnings)
{
	const struct resolve *const r = plan_resolve(plan);
	const struct model *const m = &r->model;

	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++)
		for (size_t i = 0; i < m->cats[mp].nwarnings; i++)
			lines_add_new(warnings, m->cats[mp].warnings[i]);
	for (size_t i = 0; i < m->nunused; i++)
		lines_add(warnings,
			  "a pattern of universal_checkpoint_info matches no"
			  " parameter: %s", m->unused[i]);
	if (m->scaled)
		lines_add(warnings,
			  "pieces of %s are scaled: its moments are converted,"
			  " but lr and eps would have to be scaled, too",
			  m->scaled->name);
	if (resolve_shard(r, 0, 0) && resolve_shard(r, 0, 0)->mapping_ignored)
		lines_add(warnings,
			  "param_slice_mappings are wrong%s: parameters are"
			  " placed in the order of param_shapes instead",
			  m->cats[0].round_robin ? " (round_robin_gradients)" :
						   "");
}
