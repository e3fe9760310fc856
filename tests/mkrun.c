/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a run with one checkpoint whose parameters are as large as is wanted:
 *
 *   mkrun DIR PARAMETERS ELEMENTS
 *
 * DIR must exist.  The tag is global_step1, of ZeRO stage 1 and two ranks; a
 * parameter's file has four bytes for each element.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/mkckpt.h"
#include "tests/mkpt.h"

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

int main(int argc, char **argv)
{
	const size_t n = argc == 4 ? strtoul(argv[2], NULL, 10) : 0;
	const uint64_t elements = argc == 4 ? strtoull(argv[3], NULL, 10) : 0;
	struct mkckpt c = { .stage = 1,
			    .ranks = 2,
			    .nparams = n,
			    .ngroups = 1,
			    .align = 1,
			    .element = element };
	char path[PATH_MAX];

	c.params = n && elements ? new_params(n, elements) : NULL;
	if (!c.params) {
		fprintf(stderr, "usage: mkrun DIR PARAMETERS ELEMENTS\n");
		return 2;
	}
	snprintf(path, sizeof(path), "%s/latest", argv[1]);
	mkpt_save(path, (const uint8_t *)"global_step1", 12);
	snprintf(path, sizeof(path), "%s/global_step1", argv[1]);
	if (mkdir(path, 0777) < 0) {
		perror(path);
		return 1;
	}
	mkckpt_write(&c, path);
	for (size_t i = 0; i < n; i++)
		free((char *)c.params[i].name);
	free((void *)c.params);
	return 0;
}
