/* SPDX-License-Identifier: Apache-2.0 */
/* Division of work between processes, perhaps on several machines, without communication: each
 * process computes its own part. */
#include "ckpt/commands/share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"

/* Variables of srun, of Open MPI's mpirun, and of MPICH's and Intel's: the process's number, from
 * 0, and the number of processes. */
static const struct {
	const char *rank, *ranks;
} launchers[] = {
	{ "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },
	{ "PMI_RANK", "PMI_SIZE" },
	{ "SLURM_PROCID", "SLURM_NTASKS" },
};

static bool parse_count(const char *text, char end, unsigned *out, const char **rest)
{
	char *stop;
	const unsigned long v = strtoul(text, &stop, 10);

	*out = (unsigned)v;
	*rest = stop + 1;
	return *text >= '0' && *text <= '9' && *stop == end && v <= SHARES_MAX;
}

static const char *find_launcher(struct share *out)
{
	for (size_t i = 0; i < COUNT(launchers); i++) {
		const char *rank = getenv(launchers[i].rank), *ranks = getenv(launchers[i].ranks);
		const char *rest;

		if (!rank || !ranks)
			continue;
		if (!parse_count(rank, '\0', &out->part, &rest) ||
		    !parse_count(ranks, '\0', &out->parts, &rest) || out->part >= out->parts)
			return "the launcher's variables contradict each other";
		out->part++;
		return NULL;
	}
	return "no variables of srun or mpirun: say which part it is, as 1/4";
}

const char *share_parse(const char *text, struct share *out)
{
	struct share s;
	const char *rest;
	const char *wrong = NULL;

	if (strcmp(text, "auto") == 0)
		wrong = find_launcher(&s);
	else if (!parse_count(text, '/', &s.part, &rest) ||
		 !parse_count(rest, '\0', &s.parts, &rest) || !s.part || s.part > s.parts)
		wrong = "must be I/N with I from 1 to N, or auto";
	if (!wrong)
		*out = s;
	return wrong;
}

struct sized {
	uint64_t size;
	size_t i;
};

static int largest_first(const void *a, const void *b)
{
	const struct sized *x = a, *y = b;

	return x->size != y->size ? (x->size < y->size) - (x->size > y->size)
				  : ORDER(x->i, y->i);
}

bool share_choose(const struct share *s, const uint64_t *sizes, size_t n, bool *mine)
{
	struct sized *v = calloc(n + 1, sizeof(*v));
	uint64_t *load = calloc(s->parts + 1, sizeof(*load));
	const bool ok = v && load;

	for (size_t i = 0; ok && i < n; i++)
		v[i] = (struct sized){ sizes[i], i };
	if (ok && s->parts)
		qsort(v, n, sizeof(*v), largest_first);
	for (size_t i = 0; ok && i < n; i++) {
		unsigned least = 0;

		for (unsigned k = 1; k < s->parts; k++)
			if (load[k] < load[least])
				least = k;
		load[least] += v[i].size + 1; /* even an empty file is work */
		mine[v[i].i] = !s->parts || least + 1 == s->part;
	}
	free(v);
	free(load);
	return ok;
}
