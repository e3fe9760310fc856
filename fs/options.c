/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines.  There are three kinds of callers:
 *
 *   users		ucfs SOURCE MOUNTPOINT [-o options] [-f] [-d]
 *   mount.fuse3	ucfs SOURCE MOUNTPOINT -o options   (mount -t fuse.ucfs)
 *   mount(8)		mount.ucfs SOURCE MOUNTPOINT [-sfnv] [-N ns] [-t type]
 *			-o options			    (mount -t ucfs, fstab)
 *
 * mount(8) passes every option of an fstab line; those that concern only itself
 * or systemd are dropped here.  Every option is known here, so that libfuse never
 * has to complain of one.
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

#include "ckpt/base/errmsg.h"
#include "ckpt/base/nearest.h"
#include "ckpt/weights/weights_file.h"
#include "ckpt/weights/weights_split.h"
#include "fs/mountpoint.h"
#include "fs/ops/fuse_caps.h"

enum key {
	KEY_IGNORE,
	KEY_KEEP, /* for libfuse */
	KEY_REMOUNT,
	KEY_NONEMPTY,
	KEY_HELP,
	KEY_VERSION,
	KEY_FOREGROUND,
	KEY_DEBUG,
	KEY_CRC,
	KEY_STAGE,
	KEY_RULES,
	KEY_PRESET,
	KEY_HF_DTYPE,
	KEY_HF_SHARD_SIZE,
	KEY_UID,
	KEY_ALLOW_OTHER,
	KEY_FOLLOW_LINKS,
	KEY_GID,
	KEY_NO_CACHE,
	KEY_CACHE_SIZE,
	KEY_IO_URING,
	KEY_INDEX,
	KEY_LOG,
	KEY_CHECK,
	KEY_VIEW,
	KEY_RANKS,
	KEY_REPLACE,
};

static const struct fuse_opt table[] = {
	FUSE_OPT_KEY("-h", KEY_HELP),
	FUSE_OPT_KEY("--help", KEY_HELP),
	FUSE_OPT_KEY("-V", KEY_VERSION),
	FUSE_OPT_KEY("--version", KEY_VERSION),
	FUSE_OPT_KEY("-f", KEY_FOREGROUND),
	FUSE_OPT_KEY("--foreground", KEY_FOREGROUND),
	FUSE_OPT_KEY("-d", KEY_DEBUG),
	FUSE_OPT_KEY("--debug", KEY_DEBUG),
	FUSE_OPT_KEY("debug", KEY_DEBUG),
	FUSE_OPT_KEY("crc=%s", KEY_CRC),
	FUSE_OPT_KEY("stage=%s", KEY_STAGE),
	FUSE_OPT_KEY("rules=%s", KEY_RULES),
	FUSE_OPT_KEY("preset=%s", KEY_PRESET),
	FUSE_OPT_KEY("hf_dtype=%s", KEY_HF_DTYPE),
	FUSE_OPT_KEY("hf_shard_size=%s", KEY_HF_SHARD_SIZE),
	FUSE_OPT_KEY("uid=%s", KEY_UID),
	FUSE_OPT_KEY("allow_other", KEY_ALLOW_OTHER),
	FUSE_OPT_KEY("follow_links", KEY_FOLLOW_LINKS),
	FUSE_OPT_KEY("gid=%s", KEY_GID),
	/* Flags of the converter, which a mount always implies. */
	FUSE_OPT_KEY("no_strict", KEY_IGNORE),
	FUSE_OPT_KEY("inject_missing_state", KEY_IGNORE),
	FUSE_OPT_KEY("no_cache", KEY_NO_CACHE),
	FUSE_OPT_KEY("cache_size=%s", KEY_CACHE_SIZE),
	FUSE_OPT_KEY("io_uring", KEY_IO_URING),
	FUSE_OPT_KEY("index=%s", KEY_INDEX),
	FUSE_OPT_KEY("log=%s", KEY_LOG),
	FUSE_OPT_KEY("check", KEY_CHECK),
	FUSE_OPT_KEY("view=%s", KEY_VIEW),
	FUSE_OPT_KEY("ranks=%s", KEY_RANKS),
	FUSE_OPT_KEY("replace", KEY_REPLACE),
	FUSE_OPT_KEY("nonempty", KEY_NONEMPTY),
	FUSE_OPT_KEY("remount", KEY_REMOUNT),
	/* The mount is always read-only and checks permissions. */
	FUSE_OPT_KEY("rw", KEY_IGNORE),
	FUSE_OPT_KEY("ro", KEY_IGNORE),
	FUSE_OPT_KEY("default_permissions", KEY_IGNORE),
	/* Of libfuse, fusermount3 and the kernel. */
	FUSE_OPT_KEY("allow_root", KEY_KEEP),
	FUSE_OPT_KEY("auto_unmount", KEY_KEEP),
	FUSE_OPT_KEY("fsname=%s", KEY_KEEP),
	FUSE_OPT_KEY("subtype=%s", KEY_KEEP),
	FUSE_OPT_KEY("max_read=%s", KEY_KEEP),
	FUSE_OPT_KEY("suid", KEY_KEEP),
	FUSE_OPT_KEY("nosuid", KEY_KEEP),
	FUSE_OPT_KEY("dev", KEY_KEEP),
	FUSE_OPT_KEY("nodev", KEY_KEEP),
	FUSE_OPT_KEY("exec", KEY_KEEP),
	FUSE_OPT_KEY("noexec", KEY_KEEP),
	FUSE_OPT_KEY("sync", KEY_KEEP),
	FUSE_OPT_KEY("async", KEY_KEEP),
	FUSE_OPT_KEY("dirsync", KEY_KEEP),
	FUSE_OPT_KEY("atime", KEY_KEEP),
	FUSE_OPT_KEY("noatime", KEY_KEEP),
	FUSE_OPT_KEY("context=%s", KEY_KEEP),
	FUSE_OPT_KEY("fscontext=%s", KEY_KEEP),
	FUSE_OPT_KEY("defcontext=%s", KEY_KEEP),
	FUSE_OPT_KEY("rootcontext=%s", KEY_KEEP),
	/* Options of mount(8), its callers and systemd. */
	FUSE_OPT_KEY("defaults", KEY_IGNORE),
	FUSE_OPT_KEY("auto", KEY_IGNORE),
	FUSE_OPT_KEY("noauto", KEY_IGNORE),
	FUSE_OPT_KEY("user", KEY_IGNORE),
	FUSE_OPT_KEY("user=%s", KEY_IGNORE),
	FUSE_OPT_KEY("nouser", KEY_IGNORE),
	FUSE_OPT_KEY("users", KEY_IGNORE),
	FUSE_OPT_KEY("nousers", KEY_IGNORE),
	FUSE_OPT_KEY("owner", KEY_IGNORE),
	FUSE_OPT_KEY("noowner", KEY_IGNORE),
	FUSE_OPT_KEY("group", KEY_IGNORE),
	FUSE_OPT_KEY("nogroup", KEY_IGNORE),
	FUSE_OPT_KEY("nofail", KEY_IGNORE),
	FUSE_OPT_KEY("_netdev", KEY_IGNORE),
	FUSE_OPT_KEY("comment=%s", KEY_IGNORE),
	/* Options of mount(8) that some libfuse rejects. */
	FUSE_OPT_KEY("relatime", KEY_IGNORE),
	FUSE_OPT_KEY("norelatime", KEY_IGNORE),
	FUSE_OPT_KEY("strictatime", KEY_IGNORE),
	FUSE_OPT_KEY("nostrictatime", KEY_IGNORE),
	FUSE_OPT_KEY("diratime", KEY_IGNORE),
	FUSE_OPT_KEY("nodiratime", KEY_IGNORE),
	FUSE_OPT_KEY("lazytime", KEY_IGNORE),
	FUSE_OPT_KEY("nolazytime", KEY_IGNORE),
	FUSE_OPT_KEY("symfollow", KEY_IGNORE),
	FUSE_OPT_KEY("nosymfollow", KEY_IGNORE),
	FUSE_OPT_KEY("mand", KEY_IGNORE),
	FUSE_OPT_KEY("nomand", KEY_IGNORE),
	FUSE_OPT_KEY("silent", KEY_IGNORE),
	FUSE_OPT_KEY("loud", KEY_IGNORE),
	FUSE_OPT_KEY("iversion", KEY_IGNORE),
	FUSE_OPT_KEY("noiversion", KEY_IGNORE),
	FUSE_OPT_END,
};

void options_print_help(void)
{
	printf("usage: ucfs SOURCE MOUNTPOINT [options]\n"
	       "\n"
	       "Show a DeepSpeed ZeRO checkpoint as a universal checkpoint.\n"
	       "SOURCE is a run directory, a tag directory, a pack of one, or a Hugging\n"
	       "Face directory.\n"
	       "\n"
	       "    -f, --foreground  stay in the foreground, log to stderr\n"
	       "    -d, --debug       like -f, and log every request\n"
	       "    -V, --version     print the version\n"
	       "    -h, --help        print this help\n"
	       "    -o, --options OPT[,OPT...]\n"
	       "                      mount options:\n"
	       "        crc=exact|zero    checksums in .pt files: computed\n"
	       "                          (default), or zero, which torch accepts\n"
	       "        stage=native|any  a tree that loads into the ZeRO stage it\n"
	       "                          was saved with (default), or into any\n"
	       "        rules=FILE        merge rules that come before the\n"
	       "                          checkpoint's own (JSON)\n"
	       "        preset=NAME       merge rules of Megatron-DeepSpeed:\n"
	       "                          megatron-qkv-thirds, megatron-qkv-by-head\n"
	       "        hf_dtype=TYPE     type of the weights in *_hf views: fp32\n"
	       "                          (default), bf16 or fp16\n"
	       "        hf_shard_size=SIZE  largest file of weights, for example\n"
	       "                          500MB (default: 5GB)\n"
	       "        uid=N, gid=N      owner and group of all files (default: those\n"
	       "                          of the run's files and of SOURCE)\n"
	       "        cache_size=SIZE   memory to assemble large files in, for\n"
	       "                          example 512M or 2G (default: 1/16 of the\n"
	       "                          memory that it may use, at most 1G)\n"
	       "        no_cache          read large files from the shards each time\n"
	       "        debug             the same as -d\n"
	       "        no_strict, inject_missing_state\n"
	       "                          flags of the converter, which are always on\n"
	       "        io_uring          use io_uring for requests, if available\n"
	       "        index=FILE        save what is parsed from the shards for the\n"
	       "                          next mount in FILE (default: below ~/.cache)\n"
	       "        index=none        use no index\n"
	       "        check             open every file of a tag before it is served,\n"
	       "                          and refuse files of different steps\n"
	       "        log=FILE          append log lines to FILE instead of syslog\n"
	       "        view=KIND         view of a tag directory: universal (default),\n"
	       "                          hf, fp32, or zero with ranks=N\n"
	       "        ranks=N[,N]...    list views *_dpN: tags as N data-parallel\n"
	       "                          ranks would have saved them; N_zS: with\n"
	       "                          ZeRO stage S\n"
	       "        replace           show these views instead of the tags; needs\n"
	       "                          ranks=N, with one N\n"
	       "        allow_other       let other users read what they may read of\n"
	       "                          the source\n"
	       "        follow_links      with allow_other: also follow symbolic links\n"
	       "                          that lead out of the source\n"
	       "        allow_root        let root read the mount\n"
	       "        auto_unmount      unmount when the server dies\n"
	       "        nonempty          mount over an existing ucfs mount, too\n"
	       "        ro                accepted: the mount is always read-only\n"
	       "\n"
	       "To unmount: fusermount3 -u MOUNTPOINT, or umount.\n");
}

/* Print what is wrong with an option, and return -1. */
static int bad_option(const char *arg, const char *why)
{
	fprintf(stderr, "ucfs: %s: %s\n", arg, why);
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

/* A number of bytes, such as 512M or 2G. */
static bool parse_bytes(const char *text, uint64_t *out)
{
	static const char units[] = "KMGT";
	const char *unit;
	unsigned long long v;
	unsigned shift = 0;
	char *end;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (*end && (unit = strchr(units, *end))) {
		shift = 10 * (unsigned)(unit - units + 1);
		end++;
	}
	if (errno || end == text || *end || *text == '-' || v == 0 ||
	    v > UINT64_MAX >> shift)
		return false;
	*out = (uint64_t)v << shift;
	return true;
}

/* One of two words: false for the first, true for the second. */
static bool parse_choice(const char *text, const char *first,
			 const char *second, bool *out)
{
	*out = strcmp(text, second) == 0;
	return *out || strcmp(text, first) == 0;
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

static bool parse_index(const char *text, struct options *o)
{
	o->no_index = strcmp(text, "none") == 0;
	if (!o->no_index)
		return parse_file(text, &o->tree.index.path);
	free(o->tree.index.path);
	o->tree.index.path = NULL;
	return true;
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
		return parse_choice(text, "exact", "zero", &plan->crc_zero)
			       ? NULL
			       : "must be exact or zero";
	case KEY_STAGE:
		return parse_choice(text, "native", "any", &plan->any_stage)
			       ? NULL
			       : "must be native or any";
	case KEY_RULES:
	case KEY_PRESET:
		return take_rules(o, key, text);
	case KEY_HF_DTYPE:
		return weights_file_parse_dtype(text, &plan->dtype)
			       ? NULL
			       : "must be fp32, bf16 or fp16";
	case KEY_HF_SHARD_SIZE:
		return weights_split_parse_size(text, &plan->shard_size)
			       ? NULL
			       : "not a size in KB, MB, GB or TB";
	case KEY_UID:
		o->tree.has_uid = true;
		return parse_id(text, &o->tree.uid) ? NULL : "not a number";
	case KEY_GID:
		o->tree.has_gid = true;
		return parse_id(text, &o->tree.gid) ? NULL : "not a number";
	case KEY_CACHE_SIZE:
		return parse_bytes(text, &o->backing.cache_size) ? NULL
								 : "not a size";
	case KEY_INDEX:
		return parse_index(text, o) ? NULL : "not a file name";
	case KEY_LOG:
		return parse_file(text, &o->log) ? NULL : "not a file name";
	case KEY_VIEW:
		return plan_parse_kind(text, &plan->kind)
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
	fprintf(stderr, "ucfs: out of memory\n");
	return -1;
}

static int options_take_operand(struct options *o, const char *arg)
{
	char **const operand =
		!o->tree.source ? &o->tree.source : &o->mountpoint;

	if (*operand) {
		fprintf(stderr, "ucfs: too many arguments: %s\n", arg);
		return -1;
	}
	*operand = strdup(arg);
	return *operand ? 0 : no_memory();
}

/* Name what the user probably meant.  Options that are ignored are of no use. */
static int unknown_option(const char *arg)
{
	const size_t len = strcspn(arg, "=");
	const char *const value = arg + len, *dash = arg[0] == '-' ? "" : "-o ";
	struct nearest near = nearest_begin(arg, len);
	bool wants_value;

	for (const struct fuse_opt *o = table; o->templ; o++)
		if (o->value != KEY_IGNORE && (o->templ[0] == '-') == !*dash)
			nearest_consider(&near, o->templ,
					 strcspn(o->templ, "="));
	if (!near.name) {
		fprintf(stderr, "ucfs: unknown option %s%s; see ucfs --help\n",
			dash, arg);
		return -1;
	}
	wants_value = near.name[near.name_len] == '=';
	if (near.distance == 0)
		fprintf(stderr, "ucfs: option %s%s: %s\n", dash, arg,
			wants_value ? "needs a value" : "takes no value");
	else
		fprintf(stderr,
			"ucfs: unknown option %s%s; did you mean %s%.*s%s?\n",
			dash, arg, dash, (int)near.name_len, near.name,
			!wants_value ? "" : *value ? value : "=...");
	return -1;
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
			       unknown_option(arg) : 0;
	case KEY_IGNORE:
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
	case KEY_NO_CACHE:
		o->backing.no_cache = true;
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
	wrong = key == FUSE_OPT_KEY_OPT
			? parse_ranks(arg, &o->tree)
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
	const bool zero = t->plan.kind == PLAN_RESHARD;

	if (zero && t->nrecut != 1)
		return bad_option("view=zero", "needs ranks=N, with one N");
	if (t->replace && t->nrecut != 1)
		return bad_option("replace", "needs ranks=N, with one N");
	if (zero) {
		t->plan.ranks = t->recut[0].ranks;
		t->plan.stage = t->recut[0].stage;
	}
	return 0;
}

static char *absolute(char **path)
{
	char *const full = realpath(*path, NULL);

	if (!full)
		fprintf(stderr, "ucfs: source %s: %s\n", *path, strerror(errno));
	free(*path);
	*path = full;
	return full;
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
	const size_t n = strlen(o->tree.source);

	if (strncmp(o->mountpoint, o->tree.source, n) != 0 ||
	    (o->mountpoint[n] != '/' && o->mountpoint[n] != '\0'))
		return 0;
	fprintf(stderr, "ucfs: mount point %s is inside the source %s\n",
		o->mountpoint, o->tree.source);
	return -1;
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

	*o = (struct options){ .tree.plan.hugging_face = true };
	if (strcmp(name, "mount.ucfs") == 0)
		drop_helper_flags(o, &argc, argv);
	if (copy_args(argc, argv, fuse_args) ||
	    fuse_opt_parse(fuse_args, o, table, options_take) < 0)
		return -1;
	if (o->help || o->version)
		return 0;
	if (!o->tree.source || !o->mountpoint) {
		fprintf(stderr, "ucfs: usage: ucfs SOURCE MOUNTPOINT"
				" [options]; see ucfs --help\n");
		return -1;
	}
	if (check_ranks(o))
		return -1;
	if (!absolute(&o->tree.source) ||
	    mountpoint_resolve(&o->mountpoint, o->nonempty))
		return -1;
	if (!o->tree.index.path && !o->no_index)
		o->tree.index = indexfile_default(o->tree.source);
	return check_nesting(o) ? -1 : add_mount_options(o, fuse_args);
}

void options_done(struct options *o)
{
	free(o->tree.source);
	free(o->mountpoint);
	free(o->tree.index.path);
	free(o->log);
	user_rules_done(&o->rules);
}
