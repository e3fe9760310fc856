/* SPDX-License-Identifier: Apache-2.0 */
/* uckpt SOURCE [DIRECTORY]: list the files of a checkpoint as ucfs would mount it, with
 * their sizes and first bytes.  cc -o uckpt uckpt.c $(pkg-config --cflags --libs uckpt) */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <uckpt.h>

static struct uckpt_error err;

static int64_t need(int64_t result)
{
	if (result >= 0)
		return result;
	fprintf(stderr, "uckpt: %s\n", *err.text ? err.text : strerror((int)-result));
	exit(1);
}

static void show(struct uckpt *u, const struct uckpt_attr *attr, const char *path)
{
	unsigned char bytes[8];
	struct uckpt_file *file;
	int64_t n;

	need(uckpt_file_open(u, attr->node, &file, &err));
	n = need(uckpt_file_read(file, bytes, sizeof(bytes), 0, &err));
	uckpt_file_close(file);
	printf("%s %" PRIu64 " ", path, attr->size);
	for (int64_t i = 0; i < n; i++)
		printf("%02x", bytes[i]);
	printf("\n");
}

static void list(struct uckpt *u, uint64_t node, const char *path)
{
	struct uckpt_entry entry;
	struct uckpt_attr attr;
	struct uckpt_dir *dir;
	uint64_t pos = 0;
	char below[4096];

	need(uckpt_dir_open(u, node, &dir, &err));
	while (need(uckpt_dir_next(dir, &pos, &entry, &err))) {
		snprintf(below, sizeof(below), "%s%s%s", path, *path ? "/" : "",
			 entry.name);
		need(uckpt_lookup(u, node, entry.name, &attr, NULL, &err));
		if (S_ISDIR(attr.mode))
			list(u, attr.node, below);
		else if (S_ISREG(attr.mode))
			show(u, &attr, below);
	}
	uckpt_dir_close(dir);
}

int main(int argc, char **argv)
{
	const char *const *paths = (const char *const *)argv + 1;
	const char *const directory = argc > 2 ? argv[2] : "";
	struct uckpt *const u = uckpt_new();
	uint64_t node;

	if (!u || argc < 2) {
		fprintf(stderr, "usage: uckpt SOURCE [DIRECTORY]\n");
		return 2;
	}
	need(uckpt_open(u, paths, 1, &err));
	need(uckpt_find(u, directory, &node, &err));
	list(u, node, directory);
	uckpt_free(u);
	return 0;
}
