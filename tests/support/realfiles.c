/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/realfiles.h"

#include <stdio.h>
#include <stdlib.h>

void realfiles_list(glob_t *g)
{
	const char *const srcdir = getenv("top_srcdir");
	char pattern[4096];

	snprintf(pattern, sizeof(pattern), "%s/tests/good/*/*/*.pt",
		 srcdir ? srcdir : ".");
	if (glob(pattern, 0, NULL, g)) {
		fprintf(stderr, "%s: no reference checkpoints\n", pattern);
		exit(1);
	}
}
