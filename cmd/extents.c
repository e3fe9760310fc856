/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt extents: prints the answers of the ioctls of ucfs_ioctl.h for an open file, as a table or
 * as JSON.  A server's answer that makes no progress is an error, not an endless loop.
 */
#include <cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/json.h"
#include "ckpt/vfile/ucfs_ioctl.h"
#include "cmd/cmd.h"

struct listing {
	const char *path;
	int fd;
	uint64_t size;
	struct ucfs_extent *v;
	size_t n, cap;
	struct ucfs_source *sources; /* the sources that extents refer to */
	size_t nsources, sources_cap;
};

static int fail_ioctl(const struct listing *l)
{
	if (errno == ENOTTY)
		cmd_say("%s: is not a file of a checkpoint in a ucfs mount",
			l->path);
	else if (errno == EINVAL)
		cmd_say("%s: its ucfs server uses another version of the extents interface",
			l->path);
	else
		cmd_say("%s: cannot query extents: %s", l->path,
			strerror(errno));
	return CMD_FAILED;
}

static int no_memory(void)
{
	cmd_say("out of memory");
	return CMD_FAILED;
}

static int read_extents(struct listing *l)
{
	struct ucfs_extents *x = calloc(1, sizeof(*x));
	int rc = CMD_OK;

	if (!x)
		return no_memory();
	for (uint64_t start = 0;; start = x->start = x->next) {
		x->version = UCFS_EXTENTS_VERSION;
		if (ioctl(l->fd, UCFS_IOC_EXTENTS, x) < 0) {
			rc = fail_ioctl(l);
			break;
		}
		l->size = x->size;
		if (x->count == 0)
			break;
		if (x->count > UCFS_EXTENTS_MAX || x->next <= start) {
			cmd_say("%s: the server returned invalid extents",
				l->path);
			rc = CMD_FAILED;
			break;
		}
		if (!array_reserve(&l->v, &l->cap, l->n + x->count,
				   sizeof(*l->v))) {
			rc = no_memory();
			break;
		}
		memcpy(l->v + l->n, x->extent, x->count * sizeof(*l->v));
		l->n += x->count;
	}
	free(x);
	return rc;
}

static const struct ucfs_source *find_source(const struct listing *l,
					     uint32_t number)
{
	for (size_t i = l->nsources; i > 0; i--)
		if (l->sources[i - 1].source == number)
			return &l->sources[i - 1];
	return NULL;
}

static bool has_source(const struct ucfs_extent *e)
{
	return e->kind == UCFS_EXTENT_SOURCE || e->kind == UCFS_EXTENT_CAST ||
	       e->kind == UCFS_EXTENT_PACKED || e->kind == UCFS_EXTENT_REMOTE;
}

static int read_sources(struct listing *l)
{
	for (size_t i = 0; i < l->n; i++) {
		const struct ucfs_extent *e = &l->v[i];
		struct ucfs_source *s;

		if (!has_source(e) || find_source(l, e->source))
			continue;
		if (!array_reserve(&l->sources, &l->sources_cap,
				   l->nsources + 1, sizeof(*s)))
			return no_memory();
		s = &l->sources[l->nsources];
		*s = (struct ucfs_source){ .version = UCFS_EXTENTS_VERSION,
					   .source = e->source };
		if (ioctl(l->fd, UCFS_IOC_SOURCE, s) < 0)
			return fail_ioctl(l);
		s->source = e->source;
		s->path[sizeof(s->path) - 1] = '\0';
		l->nsources++;
	}
	return CMD_OK;
}

static const char *kind_name(uint32_t kind)
{
	static const char *const names[] = {
		[UCFS_EXTENT_LITERAL] = "literal",
		[UCFS_EXTENT_SOURCE] = "source",
		[UCFS_EXTENT_CAST] = "cast",
		[UCFS_EXTENT_GATHER] = "gather",
		[UCFS_EXTENT_ZERO] = "zero",
		[UCFS_EXTENT_PACKED] = "packed",
		[UCFS_EXTENT_REMOTE] = "remote",
	};

	return kind < COUNT(names) && names[kind] ? names[kind] : "unknown";
}

static int print_text(const struct listing *l)
{
	printf("%14s %14s  %-7s %14s  %s\n", "offset", "length", "kind",
	       "source offset", "source");
	for (size_t i = 0; i < l->n; i++) {
		const struct ucfs_extent *e = &l->v[i];
		const struct ucfs_source *s = find_source(l, e->source);

		printf("%14" PRIu64 " %14" PRIu64 "  %-7s ", e->offset,
		       e->length, kind_name(e->kind));
		if (!has_source(e) || !s) {
			printf("%14s  -", "-");
		} else {
			printf("%14" PRIu64 "  ", e->source_offset);
			cmd_put(s->path);
		}
		putchar('\n');
	}
	return CMD_OK;
}

static cJSON *source_json(const struct ucfs_source *s)
{
	cJSON *o = cJSON_CreateObject();

	json_add_int(o, "source", s->source);
	cJSON_AddStringToObject(o, "path", s->path);
	json_add_int(o, "bytes", (int64_t)s->size);
	json_add_int(o, "device", (int64_t)s->dev);
	json_add_int(o, "inode", (int64_t)s->ino);
	json_add_int(o, "mtime_ns", s->mtime_ns);
	return o;
}

static cJSON *extent_json(const struct ucfs_extent *e)
{
	cJSON *o = cJSON_CreateObject();

	json_add_int(o, "offset", (int64_t)e->offset);
	json_add_int(o, "length", (int64_t)e->length);
	cJSON_AddStringToObject(o, "kind", kind_name(e->kind));
	if (has_source(e)) {
		json_add_int(o, "source", e->source);
		json_add_int(o, "source_offset",
				 (int64_t)e->source_offset);
	}
	return o;
}

static int print_json(const struct listing *l)
{
	cJSON *root = cJSON_CreateObject();
	struct bytebuf text = { 0 };
	int rc = CMD_OK;
	cJSON *list;

	cJSON_AddStringToObject(root, "file", l->path);
	json_add_int(root, "bytes", (int64_t)l->size);
	list = cJSON_AddArrayToObject(root, "sources");
	for (size_t i = 0; i < l->nsources; i++)
		cJSON_AddItemToArray(list, source_json(&l->sources[i]));
	list = cJSON_AddArrayToObject(root, "extents");
	for (size_t i = 0; i < l->n; i++)
		cJSON_AddItemToArray(list, extent_json(&l->v[i]));
	json_write(&text, root, true);
	bytebuf_add_str(&text, "\n");
	cJSON_Delete(root);
	if (text.failed)
		rc = no_memory();
	else
		fwrite(text.data, 1, text.len, stdout);
	bytebuf_done(&text);
	return rc;
}

static int extents_show(const char *path, bool json)
{
	struct listing l = { .path = path };
	int rc;

	l.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (l.fd < 0) {
		cmd_say("%s: cannot open: %s", path, strerror(errno));
		return CMD_FAILED;
	}
	rc = read_extents(&l);
	if (rc == CMD_OK)
		rc = read_sources(&l);
	if (rc == CMD_OK)
		rc = json ? print_json(&l) : print_text(&l);
	close(l.fd);
	free(l.v);
	free(l.sources);
	return rc;
}

int cmd_extents(struct uckpt *u, int argc, char **argv)
{
	unsigned flags = 0;
	const struct cmd_option options[] = {
		{ "json", .help = "print JSON", .flags = &flags, .bit = UCKPT_JSON },
	};
	const struct cmd_syntax syntax = {
		"usage: ucckpt extents [--json] FILE\n"
		"\n"
		"Locate the bytes of a file in a ucfs mount.  A 'source' run is bytes\n"
		"of another file as they are; 'literal' and 'cast' runs exist only in the mount.",
		NULL, options, COUNT(options), 1, "one FILE",
	};
	int status;

	return cmd_parse(u, argc, argv, &syntax, &status)
		       ? extents_show(argv[optind], flags & UCKPT_JSON)
		       : status;
}
