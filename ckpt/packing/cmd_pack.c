/* SPDX-License-Identifier: Apache-2.0 */
/* ucckpt pack and ucckpt unpack. */
#include "ckpt/packing/cmd_pack.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/cmd/cmd.h"
#include "ckpt/cmd/interrupt.h"
#include "ckpt/cmd/progress.h"
#include "ckpt/pack/pack_index.h"
#include "ckpt/packing/packer.h"
#include "ckpt/sys/parallel.h"

#define JOBS_MAX 4096

enum option_code {
	OPT_JOBS = 'j',
	OPT_OUTPUT = 'o',
	OPT_HELP = 'h',
	OPT_CHECK = 256,
	OPT_REMOVE, /* no longer removes anything */
};

struct pack_command {
	const char *in;
	char *out;
	unsigned jobs; /* 0: one per processor */
	bool check;
	struct progress progress;
	bool begun; /* progress is */
};

static bool on_progress(void *ctx, uint64_t done, uint64_t all)
{
	struct pack_command *const c = ctx;

	if (!c->begun) {
		c->begun = true;
		progress_init(&c->progress, all);
	}
	progress_add(&c->progress, done);
	return !interrupt_signal();
}

static struct packer_options options_of(struct pack_command *c)
{
	return (struct packer_options){
		.width = c->jobs ? c->jobs : parallel_width(),
		.progress = on_progress,
		.ctx = c,
	};
}

/* End the work: CMD_OK, or CMD_FAILED with a message. */
static int report(struct pack_command *c, int rc, const struct errmsg *err)
{
	if (c->begun)
		progress_done(&c->progress);
	if (!rc)
		return CMD_OK;
	if (rc == -EINTR && interrupt_signal())
		cmd_say("%s: interrupted by %s; nothing was left there",
			c->out ? c->out : c->in, strsignal(interrupt_signal()));
	else
		cmd_say("%s", err->text);
	return CMD_FAILED;
}

/* A path without the slashes at its end; NULL when memory runs out. */
static char *trim(const char *path)
{
	size_t n = strlen(path);

	while (n > 1 && path[n - 1] == '/')
		n--;
	return strndup(path, n);
}

static int parse_jobs(char **argv, unsigned *out)
{
	char *end;
	unsigned long n;

	errno = 0;
	n = strtoul(optarg, &end, 10);
	if (errno || *end || *optarg < '0' || *optarg > '9' || n < 1 ||
	    n > JOBS_MAX)
		return cmd_usage(argv[0],
				 "'%s' is not a number of threads"
				 " (1 to %d)",
				 optarg, JOBS_MAX);
	*out = (unsigned)n;
	return CMD_OK;
}

/* Read the command line; CMD_OK, or what to exit with and *done. */
static int parse(struct pack_command *c, int argc, char **argv,
		 const struct option *options, const char *help, bool *done)
{
	int code, rc = CMD_OK;

	*done = true;
	while ((code = getopt_long(argc, argv, ":ho:j:", options, NULL)) != -1) {
		if (code == OPT_HELP) {
			puts(help);
			return CMD_OK;
		}
		if (code == OPT_JOBS)
			rc = parse_jobs(argv, &c->jobs);
		else if (code == OPT_REMOVE)
			cmd_say("--remove has no effect in this version:"
				" remove the directory yourself");
		else if (code == OPT_CHECK)
			c->check = true;
		else if (code == OPT_OUTPUT)
			c->out = optarg;
		else
			rc = cmd_bad_option(argv, options, code);
		if (rc != CMD_OK)
			return rc;
	}
	if (optind == argc)
		return cmd_usage(argv[0], "no path given");
	c->in = argv[optind++];
	if (optind < argc)
		return cmd_usage(argv[0], "'%s' is one argument too many",
				 argv[optind]);
	*done = false;
	return CMD_OK;
}

/* --- pack -------------------------------------------------------------------- */

static const char pack_help[] =
	"usage: ucckpt pack [OPTION]... TAG\n"
	"\n"
	"Write the files of a tag's directory, or of any other, to TAG" PACK_SUFFIX
	", without\n"
	"loss, and decode and compare all of it before it appears.  ucfs and"
	" ucckpt read\n"
	"it like the directory.\n"
	"\n"
	"  -o, --output FILE  the pack's name\n"
	"  -j, --jobs N       threads (default: processors)\n"
	"  -h, --help         print this";

static void print_packed(const struct pack_command *c,
			 const struct packer_result *r)
{
	const double seconds = progress_seconds(&c->progress);
	char a[CMD_SIZE_LEN], b[CMD_SIZE_LEN], rate[CMD_SIZE_LEN];

	printf("%s: %" PRIu64 " files, %s in %s (%.1f %%), in %.1f s (%s/s)\n",
	       c->out, r->files, cmd_size(r->bytes, a), cmd_size(r->packed, b),
	       r->bytes ? 100.0 * (double)r->packed / (double)r->bytes : 100.0,
	       seconds,
	       cmd_size((uint64_t)((double)r->bytes / (seconds + 1e-9)), rate));
}

static int pack(struct pack_command *c, const char *dir)
{
	const struct packer_options o = options_of(c);
	struct packer_result result;
	struct errmsg err = { "" };
	int rc;

	interrupt_catch();
	rc = report(c, packer_pack(dir, c->out, &o, &result, &err), &err);
	if (rc == CMD_OK)
		print_packed(c, &result);
	return rc;
}

int cmd_pack(int argc, char **argv)
{
	static const struct option options[] = {
		{ "output", required_argument, NULL, OPT_OUTPUT },
		{ "jobs", required_argument, NULL, OPT_JOBS },
		{ "remove", no_argument, NULL, OPT_REMOVE },
		{ "help", no_argument, NULL, OPT_HELP },
		{ 0 },
	};
	struct pack_command c = { 0 };
	char *dir, *out = NULL;
	bool done;
	int rc = parse(&c, argc, argv, options, pack_help, &done);

	if (done)
		return rc;
	dir = trim(c.in);
	if (dir && !c.out && asprintf(&out, "%s" PACK_SUFFIX, dir) >= 0)
		c.out = out;
	if (dir && c.out) {
		rc = pack(&c, dir);
	} else {
		cmd_say("out of memory");
		rc = CMD_FAILED;
	}
	free(out);
	free(dir);
	return rc;
}

/* --- unpack ------------------------------------------------------------------ */

static const char unpack_help[] =
	"usage: ucckpt unpack [OPTION]... FILE" PACK_SUFFIX "\n"
	"\n"
	"Write the directory that a pack was made of, every file byte for byte,"
	" with its\n"
	"mode and time.  It appears whole or not at all.\n"
	"\n"
	"  -o, --output DIR   the directory's name (default: FILE)\n"
	"      --check        decode and compare only; write nothing\n"
	"  -j, --jobs N       threads (default: processors)\n"
	"  -h, --help         print this";

static int unpack(struct pack_command *c)
{
	const struct packer_options o = options_of(c);
	char size[CMD_SIZE_LEN], rate[CMD_SIZE_LEN];
	struct packer_result r;
	struct errmsg err = { "" };
	double seconds;
	int rc;

	interrupt_catch();
	rc = c->check ? packer_verify(c->in, &o, &r, &err)
		      : packer_unpack(c->in, c->out, &o, &r, &err);
	rc = report(c, rc, &err);
	if (rc != CMD_OK)
		return rc;
	seconds = progress_seconds(&c->progress);
	printf("%s: %" PRIu64 " files, %s%s, in %.1f s (%s/s)\n",
	       c->check ? c->in : c->out, r.files, cmd_size(r.bytes, size),
	       c->check ? ", all as packed" : "", seconds,
	       cmd_size((uint64_t)((double)r.bytes / (seconds + 1e-9)), rate));
	return CMD_OK;
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

int cmd_unpack(int argc, char **argv)
{
	static const struct option options[] = {
		{ "output", required_argument, NULL, OPT_OUTPUT },
		{ "check", no_argument, NULL, OPT_CHECK },
		{ "jobs", required_argument, NULL, OPT_JOBS },
		{ "help", no_argument, NULL, OPT_HELP },
		{ 0 },
	};
	struct pack_command c = { 0 };
	char *out = NULL;
	bool done;
	int rc = parse(&c, argc, argv, options, unpack_help, &done);

	if (done)
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
	rc = unpack(&c);
	free(out);
	return rc;
}
