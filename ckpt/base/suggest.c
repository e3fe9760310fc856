/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base/suggest.h"

#include <getopt.h>
#include <string.h>

#include "ckpt/base/errmsg.h"

/* Longer names are not compared. */
#define NAME_LEN_MAX 63

static unsigned min_of(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* Characters to insert, delete, replace, or swap with their neighbour (optimal
 * string alignment), by rows of the usual table. */
static unsigned distance(const char *a, size_t n, const char *b, size_t m)
{
	unsigned rows[3][NAME_LEN_MAX + 1];

	for (size_t k = 0; k <= m; k++)
		rows[0][k] = (unsigned)k;
	for (size_t i = 1; i <= n; i++) {
		unsigned *row = rows[i % 3];
		const unsigned *up = rows[(i + 2) % 3];
		const unsigned *up2 = rows[(i + 1) % 3];

		row[0] = (unsigned)i;
		for (size_t k = 1; k <= m; k++) {
			const bool same = a[i - 1] == b[k - 1];

			row[k] = min_of(min_of(up[k], row[k - 1]) + 1,
					up[k - 1] + !same);
			if (i > 1 && k > 1 && a[i - 1] == b[k - 2] &&
			    a[i - 2] == b[k - 1])
				row[k] = min_of(row[k], up2[k - 2] + 1);
		}
	}
	return rows[n % 3][m];
}

struct suggestion suggest_begin(const char *word, size_t len)
{
	return (struct suggestion){ .word = word,
				    .len = len,
				    .distance = len < 3 ? 1 : 2 + (unsigned)len / 3 };
}

void suggest_consider(struct suggestion *n, const char *name, size_t len)
{
	unsigned d;

	if (len > NAME_LEN_MAX || n->len > NAME_LEN_MAX)
		return;
	d = distance(n->word, n->len, name, len);
	if (d < n->distance) {
		n->distance = d;
		n->name = name;
		n->name_len = len;
	}
}

void suggest_option(const struct option *options, const char *arg, struct errmsg *out)
{
	const char *word = arg + strspn(arg, "-");
	const size_t len = strcspn(word, "=");
	struct suggestion near = suggest_begin(word, len);
	struct errmsg found = { "" };

	for (const struct option *o = options; o->name; o++) {
		const struct errmsg before = found;

		suggest_consider(&near, o->name, strlen(o->name));
		if (len && strncmp(o->name, word, len) == 0)
			errmsg_set(&found, 0, "%s%s--%s", before.text,
				   *before.text ? ", " : "", o->name);
	}
	if (*found.text)
		errmsg_set(out, 0, "is ambiguous: %s", found.text);
	else if (near.name && strncmp(arg, "--", 2) == 0)
		errmsg_set(out, 0, "no such option; did you mean --%s?",
			   near.name);
	else
		errmsg_set(out, 0, "no such option");
}
