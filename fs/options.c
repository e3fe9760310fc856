/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines.  There are three kinds of callers:
 *
 *   users		ucfs SOURCE... MOUNTPOINT [-o options] [-f] [-d]
 *   mount.fuse3	ucfs SOURCE MOUNTPOINT -o options   (mount -t fuse.ucfs)
 *   mount(8)		mount.ucfs SOURCE MOUNTPOINT [-sfnv] [-N ns] [-t type]
 *			-o options			    (mount -t ucfs, fstab)
 *
 * mount(8) passes every option of an fstab line; those that concern only itself
 * or systemd are dropped.
 */
#include "fs/options.h"

#include <assert.h>
#include <errno.h>
#include <fuse_lowlevel.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/size.h"
#include "ckpt/cache/cache.h"
#include "ckpt/files/roots.h"
#include "ckpt/remote/remote_options.h"
#include "ckpt/remote/site.h"
#include "ckpt/sys/memory.h"
#include "fs/log/log.h"
#include "fs/mountpoint.h"
#include "fs/ops/fuse_caps.h"
#include "fs/options_impl.h"

/* What is read ahead from far storage takes this part of the memory by default. */
#define READAHEAD_PART 64

/* Print what is wrong with an option, and return -1. */
static int bad_option(const char *arg, const char *why)
{
	log_error("%s: %s", arg, why);
	return -1;
}

static bool parse_id(const char *text, unsigned *out)
{
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(text, &end, 10);
	*out = (unsigned)v;
	return !errno && end != text && !*end && v < UINT32_MAX && *text != '-';
}

/* 0, or a size that is of use. */
static bool parse_readahead(const char *text, uint64_t *out)
{
	*out = 0;
	return strcmp(text, "0") == 0 ||
	       (size_parse_binary(text, out) && *out >= CACHE_MIN);
}

/* A file's absolute name, since the server changes its working directory later.
 * Replaces `*path`; false if there is none. */
static bool parse_file(const char *text, char **path)
{
	char cwd[PATH_MAX];

	free(*path);
	*path = NULL;
	if (*text == '/')
		*path = strdup(text);
	else if (!*text || !getcwd(cwd, sizeof(cwd)) ||
		 asprintf(path, "%s/%s", cwd, text) < 0)
		*path = NULL;
	return *path;
}

/* Parse one number of ranks.  Returns NULL, or what is wrong with it. */
static const char *parse_ranks(const char *text, struct tree_options *t)
{
	if (t->nrecut == TREE_RECUT_MAX)
		return "too many numbers of ranks";
	if (!view_type_parse_ranks(text, &t->recut[t->nrecut]))
		return "not a number of ranks (1 to 4096)";
	t->nrecut++;
	return NULL;
}

/* Read merge rules.  Returns NULL, or what is wrong with them. */
static const char *take_rules(struct options *o, int key, const char *text)
{
	static struct errmsg err;
	const int rc = key == KEY_RULES
			       ? user_rules_read(&o->rules, text, &err)
			       : user_rules_preset(&o->rules, text, &err);

	o->tree.plan.rules = &o->rules;
	return rc ? err.text : NULL;
}

/* Parse the value of an option.  Returns NULL, or what is wrong with it. */
static const char *parse_value(struct options *o, int key, const char *text)
{
	struct plan_options *const plan = &o->tree.plan;

	switch (key) {
	case KEY_CRC:
		return plan_set_option(plan, "crc", text)
			       ? NULL
			       : "must be exact or zero";
	case KEY_STAGE:
		return plan_set_option(plan, "stage", text)
			       ? NULL
			       : "must be native or any";
	case KEY_RULES:
	case KEY_PRESET:
		return take_rules(o, key, text);
	case KEY_HF_DTYPE:
		return plan_set_option(plan, "dtype", text)
			       ? NULL
			       : "must be fp32, bf16 or fp16";
	case KEY_HF_SHARD_SIZE:
		return size_parse_decimal(text, &plan->shard_size)
			       ? NULL
			       : "not a size in KB, MB, GB or TB";
	case KEY_UID:
		o->tree.has_uid = true;
		return parse_id(text, &o->tree.uid) ? NULL : "not a number";
	case KEY_GID:
		o->tree.has_gid = true;
		return parse_id(text, &o->tree.gid) ? NULL : "not a number";
	case KEY_READAHEAD:
		return parse_readahead(text, &o->readahead)
			       ? NULL
			       : "neither 0 nor a size of at least 4M";
	case KEY_LOG:
		return parse_file(text, &o->log) ? NULL : "not a file name";
	case KEY_VIEW:
		return plan_set_option(plan, "to", text)
			       ? NULL
			       : "must be universal, hf, fp32 or zero";
	case KEY_RANKS:
		return parse_ranks(text, &o->tree);
	}
	assert(!"an option with a value");
	return "unknown option";
}

static int no_memory(void)
{
	log_error("out of memory");
	return -1;
}

static int options_take_operand(struct options *o, const char *arg)
{
	if (!array_reserve(&o->operands, &o->operands_cap, o->noperands + 1,
			   sizeof(*o->operands)) ||
	    !(o->operands[o->noperands] = strdup(arg)))
		return no_memory();
	o->noperands++;
	return 0;
}

/* fuse_opt callback: 1 keeps the argument for libfuse, 0 drops it, and -1 reports
 * an error. */
static int options_take(void *data, const char *arg, int key,
			struct fuse_args *args)
{
	struct options *const o = data;
	const char *wrong;

	(void)args;
	switch (key) {
	case FUSE_OPT_KEY_NONOPT:
		return options_take_operand(o, arg);
	case FUSE_OPT_KEY_OPT:
		/* The rest of ranks=N,N: libfuse splits options at commas. */
		if (o->tree.nrecut && arg[0] >= '0' && arg[0] <= '9')
			break;
		/* Drop options of other readers of fstab, such as
		 * x-systemd.automount. */
		return strncmp(arg, "x-", 2) != 0 && strncmp(arg, "X-", 2) != 0 ?
			       options_report_unknown(arg) : 0;
	case KEY_IGNORE:
		return 0;
	case KEY_GONE:
		log_warning("-o %s has no effect in this version and will be"
			    " an error in the next", arg);
		return 0;
	case KEY_KEEP: return 1;
	case KEY_REMOUNT:
		return bad_option(arg, "no option can be changed while it is"
				       " mounted: unmount it and mount again");
	case KEY_NONEMPTY:
		o->nonempty = true;
		return 0;
	case KEY_HELP: o->help = true; return 0;
	case KEY_VERSION: o->version = true; return 0;
	case KEY_FOREGROUND: o->foreground = true; return 0;
	case KEY_DEBUG: o->debug = o->foreground = true; return 0;
	case KEY_ALLOW_OTHER:
		o->tree.shared = true;
		return 1;
	case KEY_FOLLOW_LINKS:
		o->tree.follow_links = true;
		return 0;
	case KEY_CHECK:
		o->tree.check = true;
		return 0;
	case KEY_REPLACE:
		o->tree.replace = true;
		return 0;
	case KEY_IO_URING:
		return fuse_caps_has_io_uring();
	}
	wrong = key == FUSE_OPT_KEY_OPT ? parse_ranks(arg, &o->tree)
		: key == KEY_REMOTE        ? remote_options_set(arg)
				 : parse_value(o, key, strchr(arg, '=') + 1);
	return wrong ? bad_option(arg, wrong) : 0;
}

/* Drop the flags with which mount(8) calls a helper; they differ in meaning from
 * those of ucfs. */
static void drop_helper_flags(struct options *o, int *argc, char **argv)
{
	int kept = 1;

	for (int i = 1; i < *argc; i++) {
		const char *const a = argv[i];

		if (strcmp(a, "-t") == 0 || strcmp(a, "-N") == 0) {
			i++;
			continue;
		}
		if (a[0] == '-' && a[1] && strspn(a + 1, "sfnvr") ==
						   strlen(a + 1)) {
			o->fake |= strchr(a, 'f') != NULL;
			continue;
		}
		argv[kept++] = argv[i];
	}
	argv[kept] = NULL;
	*argc = kept;
}

/* Check the options about re-cut views together. */
static int check_ranks(struct options *o)
{
	struct tree_options *const t = &o->tree;
	const bool zero = t->plan.type.kind == PLAN_RESHARD;

	if (zero && t->nrecut != 1)
		return bad_option("view=zero", "needs ranks=N, with one N");
	if (t->replace && t->nrecut != 1)
		return bad_option("replace", "needs ranks=N, with one N");
	if (zero)
		t->plan.type = t->recut[0];
	return 0;
}

/* The source is one directory, or the union of several. */
static int take_source(struct options *o)
{
	struct errmsg err = { "" };

	if (roots_unite(o->operands, o->noperands - 1, true, &o->tree.source,
			&err)) {
		log_error("source %s", err.text);
		return -1;
	}
	return 0;
}

/* Copy the command line, with -o for --options. */
static int copy_args(int argc, char **argv, struct fuse_args *args)
{
	static const char options[] = "--options";
	const size_t n = sizeof(options) - 1;
	int rc = 0;

	*args = (struct fuse_args)FUSE_ARGS_INIT(0, NULL);
	for (int i = 0; !rc && i < argc; i++)
		if (strncmp(argv[i], options, n) != 0 ||
		    (argv[i][n] && argv[i][n] != '='))
			rc = fuse_opt_add_arg(args, argv[i]);
		else if ((rc = fuse_opt_add_arg(args, "-o")) == 0 && argv[i][n])
			rc = fuse_opt_add_arg(args, argv[i] + n + 1);
	return rc;
}

/* A server that lists its own mount point deadlocks. */
static int check_nesting(const struct options *o)
{
	const size_t roots = roots_count(o->tree.source);
	bool inside = false;

	for (size_t i = 0; !inside && i < roots; i++) {
		char *const root = roots_path(o->tree.source, i);
		const size_t n = root ? strlen(root) : 0;

		if (!root)
			return no_memory();
		inside = strncmp(o->mountpoint, root, n) == 0 &&
			 (o->mountpoint[n] == '/' || o->mountpoint[n] == '\0');
		if (inside)
			log_error("mount point %s is inside the source %s",
				  o->mountpoint, root);
		free(root);
	}
	return inside ? -1 : 0;
}

/* Options for the kernel.  The name is escaped, since a comma ends an option. */
static int add_mount_options(const struct options *o, struct fuse_args *args)
{
	char *fsname = NULL, *option = NULL;
	int rc;

	if (asprintf(&fsname, "fsname=%s", o->tree.source) < 0)
		return no_memory();
	rc = fuse_opt_add_opt(&option, "ro,default_permissions,subtype=ucfs");
	if (!rc && o->debug)
		rc = fuse_opt_add_opt(&option, "debug");
	if (!rc)
		rc = fuse_opt_add_opt_escaped(&option, fsname);
	if (!rc)
		rc = fuse_opt_add_arg(args, "-o");
	if (!rc)
		rc = fuse_opt_add_arg(args, option);
	free(option);
	free(fsname);
	return rc;
}

int options_parse(struct options *o, int argc, char **argv,
		  struct fuse_args *fuse_args)
{
	const char *const slash = strrchr(argv[0], '/');
	const char *const name = slash ? slash + 1 : argv[0];

	*o = (struct options){
		.tree.plan.hugging_face = true,
		.readahead = memory_share(READAHEAD_PART, CACHE_DEFAULT),
	};
	if (strcmp(name, "mount.ucfs") == 0)
		drop_helper_flags(o, &argc, argv);
	if (copy_args(argc, argv, fuse_args) ||
	    fuse_opt_parse(fuse_args, o, options_table, options_take) < 0)
		return -1;
	if (o->help || o->version)
		return 0;
	if (o->noperands < 2) {
		log_error("usage: ucfs SOURCE... MOUNTPOINT [options]; see"
			  " ucfs --help");
		return -1;
	}
	if (check_ranks(o) || take_source(o))
		return -1;
	/* Other users see the command line. */
	for (int i = 1; i < argc; i++)
		site_hide_secrets(argv[i]);
	o->mountpoint = strdup(o->operands[o->noperands - 1]);
	if (!o->mountpoint)
		return no_memory();
	if (mountpoint_resolve(&o->mountpoint, o->nonempty))
		return -1;
	return check_nesting(o) ? -1 : add_mount_options(o, fuse_args);
}

void options_done(struct options *o)
{
	while (o->noperands)
		free(o->operands[--o->noperands]);
	free(o->operands);
	free(o->tree.source);
	free(o->mountpoint);
	free(o->log);
	user_rules_done(&o->rules);
}
