/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run a fuzz target on files instead of a fuzzer's inputs: on the arguments or, by
 * default, on the target's corpus.  `make check` thus repeats everything that a
 * fuzzer has found.
 *
 *     replay_NAME [FILE]...		default: tests/fuzz/corpus/NAME
 */
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/make/mkpt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Copy the input exactly, so that ASan reports reads past its end. */
static void run(const char *path)
{
	struct bytebuf b = mkpt_load(path);
	uint8_t *const copy = malloc(b.len ? b.len : 1);

	if (!copy)
		abort();
	if (b.len)
		memcpy(copy, b.data, b.len);
	LLVMFuzzerTestOneInput(copy, b.len);
	free(copy);
	bytebuf_done(&b);
}

static unsigned run_corpus(const char *dir)
{
	char path[PATH_MAX + NAME_MAX + 2];
	struct dirent **entries;
	const int n = scandir(dir, &entries, NULL, alphasort);
	unsigned done = 0;

	if (n < 0) {
		perror(dir);
		exit(1);
	}
	for (int i = 0; i < n; i++) {
		if (entries[i]->d_name[0] != '.') {
			snprintf(path, sizeof(path), "%s/%s", dir,
				 entries[i]->d_name);
			run(path);
			done++;
		}
		free(entries[i]);
	}
	free(entries);
	return done;
}

int main(int argc, char **argv)
{
	const char *const srcdir = getenv("top_srcdir");
	const char *const name = strstr(argv[0], "replay_");
	char dir[PATH_MAX];
	unsigned done = 0;

	for (int i = 1; i < argc; i++, done++)
		run(argv[i]);
	if (argc == 1 && name) {
		snprintf(dir, sizeof(dir), "%s/tests/fuzz/corpus/%s",
			 srcdir ? srcdir : ".", name + strlen("replay_"));
		done = run_corpus(dir);
	}
	printf("%u inputs\n", done);
	return done == 0;
}
