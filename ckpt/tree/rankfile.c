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
#include "ckpt/files/files.h"
#include "ckpt/reshard/reshard.h"
#include "ckpt/tree/tree_impl.h"

static const struct pattern {
	const char *before, *after, *alone;
} patterns[] = {
	{ "rng_state_", ".pth", "rng_state.pth" },
	{ "random_states_", ".pkl", NULL },
};

/* Parse the rank in a file's name; -1 if there is none below `ranks`. */
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

/* Return the path of old rank `rank`'s file (-1: the file without a number), or
 * NULL with `*rc` set to a negative errno if it cannot be found. */
static char *rank_path(struct uckpt *u, const char *dir,
		       const struct pattern *p, long rank, int *rc)
{
	struct attrs a;
	char *path;
	const int n = rank < 0 ? asprintf(&path, "%s/%s", dir, p->alone) :
				 asprintf(&path, "%s/%s%ld%s", dir, p->before,
					  rank, p->after);

	*rc = n < 0 ? -ENOMEM : files_lstat(u, path, &a);
	if (!*rc)
		return path;
	if (n >= 0)
		free(path);
	return NULL;
}

/* Count the old ranks from 0 on that have a file. */
static long count_ranks(struct uckpt *u, const char *dir,
			const struct pattern *p)
{
	long n = 0;
	char *path;
	int rc;

	while (n < RESHARD_RANKS_MAX && (path = rank_path(u, dir, p, n, &rc))) {
		free(path);
		n++;
	}
	return n;
}

int rankfile_find(struct uckpt *u, const char *dir, const char *name,
		  unsigned ranks, char **path)
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
