/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory whose files do not make up a checkpoint: which are missing,
 * which are damaged.
 *
 * How many ranks there were is told by the highest one that left a file, or by
 * a model-states file that can still be read (dp_world_size).
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/cmd_info.h"
#include "ckpt/errmsg.h"
#include "ckpt/names.h"
#include "ckpt/ptfile.h"
#include "ckpt/value.h"

/* Missing files are listed one by one up to here. */
#define MISSING_MAX 100

struct survey {
	struct info *info;
	struct ckname *found; /* ranks' files, sorted */
	size_t n;
	unsigned dp, mp; /* degrees, as far as files tell */
	bool zero3;
	const char *prefix; /* of optimizer shards' names */
	size_t missing;
};

static bool is_known(const struct info *info, const char *text)
{
	for (size_t i = 0; i < info->problems.n; i++)
		if (strcmp(info->problems.v[i], text) == 0)
			return true;
	return false;
}

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

	if (asprintf(&path, "%s/%s", s->info->dir, name) < 0)
		return;
	if (ptfile_open(&pt, path, &err)) {
		if (!is_known(s->info, err.text))
			info_add(&s->info->problems, "%s", err.text);
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
		info_add(&s->info->problems, "%s/%s: missing", s->info->dir,
			 name);
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
				info_add(&s->info->problems,
					 "%s: more files are missing",
					 s->info->dir);
				return;
			}
			find_missing_of(s, mp, dp);
		}
}

void info_survey(struct info *info)
{
	struct survey s = { .info = info, .prefix = "" };
	struct dirent **entries;
	const int n = scandir(info->dir, &entries, NULL, alphasort);

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
