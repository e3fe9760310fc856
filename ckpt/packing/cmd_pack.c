/* SPDX-License-Identifier: Apache-2.0 */
/* ucckpt pack and ucckpt unpack. */
#include "ckpt/packing/cmd_pack.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/progress.h"
#include "ckpt/base/size.h"
#include "ckpt/cmd/cmd.h"
#include "ckpt/cmd/progress.h"
#include "ckpt/pack/pack.h"
#include "ckpt/pack/pack_write.h"
#include "ckpt/packing/pack_derive.h"
#include "ckpt/packing/pack_inputs.h"
#include "ckpt/sys/output.h"
#include "ckpt/sys/parallel.h"

#define JOBS_MAX 4096
#define JOBS_TEXT "a number of threads (1 to 4096)"

struct pack_command {
	struct uckpt *u;
	char *in, *out; /* paths */
	unsigned jobs;  /* 0: one per processor */
	bool check;
	struct progress progress;
	/* What was packed or unpacked: */
	struct uckpt_done done;
};

static struct pack_work work_of(struct pack_command *c, const char *pack)
{
	return (struct pack_work){
		.name = pack,
		.width = c->jobs ? c->jobs : parallel_width(),
		.progress = &c->progress,
	};
}

/* A pack may claim files of any size. */
static int check_room(const struct pack_command *c, const struct output *dir,
		      struct errmsg *err)
{
	struct statvfs fs;
	uint64_t room;

	if (fstatvfs(dir->fd, &fs) < 0)
		return errmsg_errno(err, dir->final, "cannot stat");
	room = (uint64_t)fs.f_bavail * fs.f_frsize;
	return c->done.bytes <= room
		       ? 0
		       : errmsg_set(err, -ENOSPC,
				    "%s: has %llu bytes to unpack; there is room"
				    " for %llu at %s",
				    c->in, (unsigned long long)c->done.bytes,
				    (unsigned long long)room, dir->final);
}

static void count_files(struct pack_command *c, const struct pack *p)
{
	const struct pack_index *const x = pack_index_of(p);

	c->done.files = c->done.bytes = 0;
	c->done.packed = pack_id(p)->size;
	for (uint32_t i = 0; i < x->nentries; i++) {
		c->done.files += S_ISREG(x->entries[i].mode);
		c->done.bytes += x->entries[i].size;
	}
}

/* Decode all of a pack and compare it with its hashes; write its files to the new
 * directory `to` unless that is NULL. */
static int extract(struct pack_command *c, const char *path, const char *to,
		   struct errmsg *err)
{
	const struct pack_work w = work_of(c, path);
	struct output dir;
	struct pack *pack;
	int rc = pack_open(c->u, path, &pack, err);

	if (rc)
		return rc;
	count_files(c, pack);
	if (!c->progress.total)
		c->progress.total = c->done.bytes;
	if (!to) {
		rc = pack_extract(pack, -1, &w, err);
	} else if (!(rc = output_open(&dir, to, OUTPUT_DIR, err))) {
		rc = check_room(c, &dir, err) ?:
		     pack_extract(pack, dir.fd, &w, err) ?:
		     output_commit(&dir, NULL, err);
		output_close(&dir);
	}
	pack_close(pack);
	return rc;
}

/* Read the command line.  False if there is nothing left to do: `*status` is then the
 * exit code. */
static bool parse(struct pack_command *c, int argc, char **argv, const char *usage,
		  const struct cmd_option *options, size_t n, int *status)
{
	const struct cmd_syntax syntax = { usage, NULL, options, n, -1, NULL };

	if (!cmd_parse(argc, argv, &syntax, status))
		return false;
	c->in = argv[optind];
	if (argc - optind == 1)
		return true;
	*status = c->in ? cmd_usage(argv[0], "'%s' is one argument too many",
				    argv[optind + 1])
			: cmd_usage(argv[0], "no path given");
	return false;
}

/* Give a pack its mode.  An ACL that it has from its directory would grant more to others
 * than the mode says: it goes with the group's bits. */
static int set_mode(const struct output *out, const struct pack_inputs *x,
		    struct errmsg *err)
{
	const mode_t masked = umask(077);
	struct stat st;
	mode_t mode;

	umask(masked);
	if (fstat(out->fd, &st) < 0)
		return errmsg_errno(err, out->final, "cannot stat");
	mode = pack_inputs_mode(x, st.st_gid) & ~masked;
	if (fgetxattr(out->fd, "system.posix_acl_access", NULL, 0) > 0)
		mode &= ~(mode_t)0077;
	return fchmod(out->fd, mode) < 0
		       ? errmsg_errno(err, out->final, "cannot set the mode")
		       : 0;
}

/* Write a pack, and prove it as any reader would read it: its hashes are of the bytes
 * that were read from the files. */
static int write_pack(struct pack_command *c, const struct pack_inputs *x,
		      struct output *out, struct errmsg *err)
{
	const struct pack_work w = work_of(c, c->out);
	uint64_t bytes = 0;

	for (size_t i = 0; i < x->n; i++)
		bytes += S_ISREG(x->v[i].mode) ? x->v[i].id.size : 0;
	c->progress.total = 2 * bytes;
	return pack_write(out->fd, x->v, x->n, &w, err) ?:
	       set_mode(out, x, err) ?:
	       extract(c, out->tmp, NULL, err) ?:
	       output_commit(out, NULL, err);
}

static int pack(struct pack_command *c, struct errmsg *err)
{
	struct pack_inputs x;
	struct output out;
	int rc = output_open(&out, c->out, OUTPUT_FILE, err);

	if (rc)
		return rc;
	rc = pack_inputs_list(c->u, &x, c->in, PACK_INPUTS_LEAST, err);
	if (!rc) {
		rc = pack_derive(&x, err) ?: write_pack(c, &x, &out, err);
		pack_inputs_done(&x);
	}
	output_close(&out);
	return rc;
}

/* Say how the work ended; `more` follows the bytes of the files.  Returns an exit code. */
static int report(struct pack_command *c, int rc, const char *more,
		  const struct errmsg *err)
{
	const char *const name = c->out ? c->out : c->in;

	if (rc)
		return progress_fail(rc, name, "nothing was left there",
				     (const void *)err);
	progress_print(name, &c->done, more);
	return CMD_OK;
}

int cmd_pack(struct uckpt *u, int argc, char **argv)
{
	struct pack_command c = { .u = u, .progress.u = u };
	struct cmd_number jobs = { &c.jobs, JOBS_MAX };
	bool remove = false;
	const struct cmd_option options[] = {
		{ "output", 'o', "FILE", "the pack's name", .text = &c.out },
		{ "jobs", 'j', "N", "threads (default: processors)",
		  .set = cmd_set_number, .ctx = &jobs, .what = JOBS_TEXT },
		{ "remove", .flag = &remove },
	};
	char *out = NULL, size[SIZE_TEXT_LEN], more[SIZE_TEXT_LEN + 32];
	struct errmsg err = { "" };
	int rc;

	if (!parse(&c, argc, argv,
		   "usage: ucckpt pack [OPTION]... TAG\n"
		   "\n"
		   "Write the files of a tag's directory, or of any other, to TAG" PACK_SUFFIX
		   ", without\n"
		   "loss, and decode and compare all of it before it appears.  ucfs and"
		   " ucckpt read\n"
		   "it like the directory.",
		   options, COUNT(options), &rc))
		return rc;
	if (remove)
		cmd_say("--remove has no effect in this version: remove the"
			" directory yourself");
	for (size_t n = strlen(c.in); n > 1 && c.in[n - 1] == '/'; n--)
		c.in[n - 1] = '\0';
	if (!c.out) {
		if (asprintf(&out, "%s" PACK_SUFFIX, c.in) < 0) {
			cmd_say("out of memory");
			return CMD_FAILED;
		}
		c.out = out;
	}
	progress_catch_signals();
	rc = pack(&c, &err);
	snprintf(more, sizeof(more), " in %s (%.1f %%)", size_text(c.done.packed, size),
		 c.done.bytes ? 100.0 * (double)c.done.packed / (double)c.done.bytes : 100.0);
	rc = report(&c, rc, more, &err);
	free(out);
	return rc;
}

/* The name of the directory: the pack's without its suffix.  NULL if it has
 * another one. */
static char *directory_of(const char *pack)
{
	const size_t n = strlen(pack), s = strlen(PACK_SUFFIX);

	return n > s && pack[n - s - 1] != '/' &&
			       strcmp(pack + n - s, PACK_SUFFIX) == 0
		       ? strndup(pack, n - s)
		       : NULL;
}

int cmd_unpack(struct uckpt *u, int argc, char **argv)
{
	struct pack_command c = { .u = u, .progress.u = u };
	struct cmd_number jobs = { &c.jobs, JOBS_MAX };
	const struct cmd_option options[] = {
		{ "output", 'o', "DIR", "the directory's name (default: FILE)",
		  .text = &c.out },
		{ "check", .help = "decode and compare only; write nothing",
		  .flag = &c.check },
		{ "jobs", 'j', "N", "threads (default: processors)",
		  .set = cmd_set_number, .ctx = &jobs, .what = JOBS_TEXT },
	};
	struct errmsg err = { "" };
	char *out = NULL;
	int rc;

	if (!parse(&c, argc, argv,
		   "usage: ucckpt unpack [OPTION]... FILE" PACK_SUFFIX "\n"
		   "\n"
		   "Write the directory that a pack was made of, every file byte for byte,"
		   " with its\n"
		   "mode and time.  It appears whole or not at all.",
		   options, COUNT(options), &rc))
		return rc;
	if (c.check && c.out)
		return cmd_usage(argv[0], "--check writes nothing");
	if (!c.check && !c.out) {
		out = directory_of(c.in);
		if (!out)
			return cmd_usage(argv[0],
					 "'%s' has no suffix " PACK_SUFFIX
					 ": name the directory"
					 " with -o",
					 c.in);
		c.out = out;
	}
	progress_catch_signals();
	rc = report(&c, extract(&c, c.in, c.out, &err),
		    c.check ? ", all as packed" : "", &err);
	free(out);
	return rc;
}
