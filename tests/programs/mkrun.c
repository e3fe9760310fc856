/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write a run with one checkpoint of parameters of a given size:
 *
 *   mkrun DIR PARAMETERS ELEMENTS [DP [TP [STAGE]]]
 *
 * DIR must exist.  The tag is global_step4, of ZeRO stage STAGE (1) on DP (2)
 * data-parallel times TP (1) tensor-parallel ranks; a parameter's file has four bytes
 * for each element of a tensor-parallel rank.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"

static uint32_t element(const struct mkckpt *c, size_t param, unsigned state,
			uint64_t i)
{
	(void)c;
	return (uint32_t)((i + param * 977 + state * 131) * 2654435761u);
}

static struct mkckpt_param *new_params(size_t n, uint64_t elements)
{
	struct mkckpt_param *const v = calloc(n, sizeof(*v));

	for (size_t i = 0; v && i < n; i++) {
		char *name;

		if (asprintf(&name, "block.%04zu.weight", i) < 0)
			return NULL;
		v[i] = (struct mkckpt_param){ .name = name,
					      .ndim = 1,
					      .shape = { elements } };
	}
	return v;
}

static int make_tag(const char *dir, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "%s/latest", dir);
	mkpt_save(path, (const uint8_t *)"global_step4", 12);
	snprintf(path, PATH_MAX, "%s/global_step4", dir);
	if (mkdir(path, 0777) < 0) {
		perror(path);
		return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	const bool all = argc >= 4 && argc <= 7;
	const size_t n = all ? strtoul(argv[2], NULL, 10) : 0;
	const uint64_t elements = all ? strtoull(argv[3], NULL, 10) : 0;
	const unsigned long tp = argc > 5 ? strtoul(argv[5], NULL, 10) : 1;
	struct mkckpt c = { .stage = argc > 6 ? (unsigned)atoi(argv[6]) : 1,
			    .ranks = argc > 4 ? (unsigned)atoi(argv[4]) : 2,
			    .nparams = n,
			    .ngroups = 1,
			    .align = 1,
			    .tp = tp > 1 ? (unsigned)tp : 0,
			    .pp = tp > 1,
			    .element = element };
	char path[PATH_MAX];

	c.params = n && elements && c.ranks ? new_params(n, elements) : NULL;
	if (!c.params) {
		fprintf(stderr,
			"usage: mkrun DIR PARAMETERS ELEMENTS [DP [TP [STAGE]]]\n");
		return 2;
	}
	if (make_tag(argv[1], path))
		return 1;
	for (; c.mp < tp; c.mp++)
		mkckpt_write(&c, path);
	for (size_t i = 0; i < n; i++)
		free((char *)c.params[i].name);
	free((void *)c.params);
	return 0;
}
