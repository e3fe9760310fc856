/* SPDX-License-Identifier: Apache-2.0 */
/* The names come from _save_rng_state in transformers/trainer.py and from
 * save_accelerator_state in accelerate/checkpointing.py.  With one rank the
 * Trainer's file has no number. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/array.h"
#include "ckpt/io/io.h"
#include "ckpt/tree/tree_impl.h"
#include "ckpt/views/recut.h"

static const struct pattern {
	const char *before, *after, *alone;
} patterns[] = {
	{ "rng_state_", ".pth", "rng_state.pth" },
	{ "random_states_", ".pkl", NULL },
};

/* Parse the rank in a file's name; -1 if it has none below `ranks`. */
static long parse_rank(const struct pattern *p, const char *name, unsigned ranks)
{
	const size_t n = strlen(p->before);
	char *end;
	long rank;

	if (p->alone && strcmp(name, p->alone) == 0)
		return ranks == 1 ? 0 : -1;
	if (strncmp(name, p->before, n) != 0 || name[n] < '0' || name[n] > '9')
		return -1;
	errno = 0;
	rank = strtol(name + n, &end, 10);
	return errno || strcmp(end, p->after) != 0 || rank >= (long)ranks ?
		       -1 :
		       rank;
}

/* Write the name of a rank's file (-1: the file without a number). */
static void rank_name(const struct pattern *p, long rank, char out[NAME_MAX + 1])
{
	if (rank < 0)
		snprintf(out, NAME_MAX + 1, "%s", p->alone);
	else
		snprintf(out, NAME_MAX + 1, "%s%ld%s", p->before, rank, p->after);
}

/* Return the path of old rank `rank`'s file (-1: the file without a number), or
 * NULL with `*rc` set to a negative errno if it cannot be found. */
static char *rank_path(struct uckpt *u, const char *dir,
		       const struct pattern *p, long rank, int *rc)
{
	char *path, name[NAME_MAX + 1];
	struct attrs a;
	int n;

	rank_name(p, rank, name);
	n = asprintf(&path, "%s/%s", dir, name);
	*rc = n < 0 ? -ENOMEM : io_stat(u, path, IO_PLAIN, &a, NULL, NULL);
	if (!*rc)
		return path;
	if (n >= 0)
		free(path);
	return NULL;
}

/* Count the old ranks, from 0 on, that have a file. */
static long count_ranks(struct uckpt *u, const char *dir, const struct pattern *p)
{
	long n = 0;
	char *path;
	int rc;

	while (n < RECUT_RANKS_MAX && (path = rank_path(u, dir, p, n, &rc))) {
		free(path);
		n++;
	}
	return n;
}

int rng_files_find(struct uckpt *u, const char *dir, const char *name, unsigned ranks, char **path)
{
	int rc = -ENOENT;

	for (size_t i = 0; i < COUNT(patterns); i++) {
		const struct pattern *const p = &patterns[i];
		const long rank = parse_rank(p, name, ranks);
		long n;

		if (rank < 0)
			continue;
		n = count_ranks(u, dir, p);
		if (!n && !p->alone)
			return -ENOENT;
		*path = rank_path(u, dir, p, n ? rank % n : -1, &rc);
		return *path ? 0 : rc;
	}
	return rc;
}

static int each_rank(struct uckpt *u, const char *dir, const struct pattern *p,
		     unsigned ranks, rng_files_fn *call, void *arg)
{
	const long n = count_ranks(u, dir, p);
	char name[NAME_MAX + 1], *path;
	int rc = 0;

	if (!n && !p->alone)
		return 0;
	for (long rank = 0; !rc && rank < (long)ranks; rank++) {
		path = rank_path(u, dir, p, n ? rank % n : -1, &rc);
		if (!path)
			break;
		rank_name(p, ranks == 1 && p->alone ? -1 : rank, name);
		rc = call(arg, name, path);
		free(path);
	}
	return rc == -ENOENT ? 0 : rc;
}

int rng_files_each(struct uckpt *u, const char *dir, unsigned ranks, rng_files_fn *call, void *arg)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < COUNT(patterns); i++)
		rc = each_rank(u, dir, &patterns[i], ranks, call, arg);
	return rc;
}
