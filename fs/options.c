/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines.  Three callers have to be understood:
 *
 *   people		ucfs SOURCE MOUNTPOINT [-o options] [-f] [-d]
 *   mount.fuse3	ucfs SOURCE MOUNTPOINT -o options   (mount -t fuse.ucfs)
 *   mount(8)		mount.ucfs SOURCE MOUNTPOINT [-sfnv] [-N ns] [-t type]
 *			-o options			    (mount -t ucfs, fstab)
 *
 * mount(8) hands over every word of an fstab line; those that only concern
 * itself or systemd are dropped here.
 */
#include "fs/options.h"

#include <errno.h>
#include <fuse_lowlevel.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/weights/weights_file.h"
#include "ckpt/weights/weights_split.h"
#include "fs/ops/fuse_caps.h"

enum key {
	KEY_IGNORE,
	KEY_RW,
	KEY_HELP,
	KEY_VERSION,
	KEY_FOREGROUND,
	KEY_DEBUG,
	KEY_CRC,
	KEY_DIALECT,
	KEY_HF_DTYPE,
	KEY_HF_SHARD_SIZE,
	KEY_UID,
	KEY_GID,
	KEY_STREAM,
	KEY_ASSEMBLE,
	KEY_IO_URING,
	KEY_INDEX,
	KEY_NOINDEX,
	KEY_VIEW,
};

static const struct fuse_opt table[] = {
	FUSE_OPT_KEY("-h", KEY_HELP),
	FUSE_OPT_KEY("--help", KEY_HELP),
	FUSE_OPT_KEY("-V", KEY_VERSION),
	FUSE_OPT_KEY("--version", KEY_VERSION),
	FUSE_OPT_KEY("-f", KEY_FOREGROUND),
	FUSE_OPT_KEY("-d", KEY_DEBUG),
	FUSE_OPT_KEY("debug", KEY_DEBUG),
	FUSE_OPT_KEY("crc=%s", KEY_CRC),
	FUSE_OPT_KEY("dialect=%s", KEY_DIALECT),
	FUSE_OPT_KEY("hf_dtype=%s", KEY_HF_DTYPE),
	FUSE_OPT_KEY("hf_shard_size=%s", KEY_HF_SHARD_SIZE),
	FUSE_OPT_KEY("uid=%s", KEY_UID),
	FUSE_OPT_KEY("gid=%s", KEY_GID),
	/* The converter's flags: a mount does always what they ask for. */
	FUSE_OPT_KEY("no_strict", KEY_IGNORE),
	FUSE_OPT_KEY("inject_missing_state", KEY_IGNORE),
	FUSE_OPT_KEY("stream", KEY_STREAM),
	FUSE_OPT_KEY("assemble=%s", KEY_ASSEMBLE),
	FUSE_OPT_KEY("io_uring", KEY_IO_URING),
	FUSE_OPT_KEY("index=%s", KEY_INDEX),
	FUSE_OPT_KEY("noindex", KEY_NOINDEX),
	FUSE_OPT_KEY("view=%s", KEY_VIEW),
	/* The mount is read-only whatever is asked for. */
	FUSE_OPT_KEY("rw", KEY_RW),
	FUSE_OPT_KEY("ro", KEY_RW),
	/* For mount(8), its callers and systemd. */
	FUSE_OPT_KEY("defaults", KEY_IGNORE),
	FUSE_OPT_KEY("auto", KEY_IGNORE),
	FUSE_OPT_KEY("noauto", KEY_IGNORE),
	FUSE_OPT_KEY("user", KEY_IGNORE),
	FUSE_OPT_KEY("user=", KEY_IGNORE),
	FUSE_OPT_KEY("nouser", KEY_IGNORE),
	FUSE_OPT_KEY("users", KEY_IGNORE),
	FUSE_OPT_KEY("owner", KEY_IGNORE),
	FUSE_OPT_KEY("group", KEY_IGNORE),
	FUSE_OPT_KEY("nofail", KEY_IGNORE),
	FUSE_OPT_KEY("_netdev", KEY_IGNORE),
	FUSE_OPT_KEY("comment=", KEY_IGNORE),
	/* Words of mount(8) that libfuse does not know. */
	FUSE_OPT_KEY("relatime", KEY_IGNORE),
	FUSE_OPT_KEY("norelatime", KEY_IGNORE),
	FUSE_OPT_KEY("strictatime", KEY_IGNORE),
	FUSE_OPT_KEY("nostrictatime", KEY_IGNORE),
	FUSE_OPT_KEY("lazytime", KEY_IGNORE),
	FUSE_OPT_KEY("nolazytime", KEY_IGNORE),
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
	       "SOURCE is a run directory or the directory of one tag.\n"
	       "\n"
	       "    -f                stay in the foreground, log to stderr\n"
	       "    -d                the same, and log every request\n"
	       "    -V, --version     print the version\n"
	       "    -h, --help        print this\n"
	       "    -o OPT[,OPT...]   mount options:\n"
	       "        crc=exact|zero    checksums in .pt files: computed\n"
	       "                          (default), or zero as torch can\n"
	       "        dialect=own|any   a tree that loads into the stage it\n"
	       "                          was saved with (default), or into any\n"
	       "        hf_dtype=TYPE     type of the weights in *_hf: fp32 (default),\n"
	       "                          bf16 or fp16\n"
	       "        hf_shard_size=SIZE  the most that a file of weights may have,\n"
	       "                          as 500MB or 5GB (default)\n"
	       "        uid=N, gid=N      owner of all files (default: of the\n"
	       "                          run's own files their owner, of views\n"
	       "                          the owner of SOURCE)\n"
	       "        assemble=SIZE     memory for large files, as 512M or 2G\n"
	       "                          (default: 1/16 of all, at most 1G)\n"
	       "        stream            no memory: large files as small ones\n"
	       "        io_uring          requests by io_uring, if it can be had\n"
	       "        index=FILE        where to keep for the next mount what\n"
	       "                          shards told (default: below ~/.cache)\n"
	       "        index=none        nowhere, as does noindex\n"
	       "        view=KIND         of one tag: universal (default), hf or fp32\n"
	       "        allow_other       let other users read the mount\n"
	       "        allow_root        let root read it\n"
	       "        auto_unmount      unmount when the server dies\n"
	       "        ro                what it always is\n"
	       "\n"
	       "To unmount: fusermount3 -u MOUNTPOINT, or umount.\n");
}

/* `arg` is the whole option. */
static int bad_value(const char *arg, const char *why)
{
	fprintf(stderr, "ucfs: %s: %s\n", arg, why);
	return -1;
}

static int parse_id(const char *arg, unsigned *out)
{
	const char *const text = strchr(arg, '=') + 1;
	char *end;
	unsigned long v;

	errno = 0;
	v = strtoul(text, &end, 10);
	if (errno || end == text || *end || v >= UINT32_MAX || *text == '-')
		return bad_value(arg, "not a number");
	*out = (unsigned)v;
	return 0;
}

static int parse_crc(struct options *o, const char *arg)
{
	const char *const text = strchr(arg, '=') + 1;

	o->plan.crc_zero = strcmp(text, "zero") == 0;
	if (o->plan.crc_zero || strcmp(text, "exact") == 0)
		return 0;
	return bad_value(arg, "must be exact or zero");
}

static int parse_dialect(struct options *o, const char *arg)
{
	const char *const text = strchr(arg, '=') + 1;

	o->plan.any_stage = strcmp(text, "any") == 0;
	if (o->plan.any_stage || strcmp(text, "own") == 0)
		return 0;
	return bad_value(arg, "must be own or any");
}

static int parse_hf_dtype(struct options *o, const char *arg)
{
	const char *const text = strchr(arg, '=') + 1;

	if (hffile_parse_dtype(text, &o->plan.dtype))
		return 0;
	return bad_value(arg, "must be fp32, bf16 or fp16");
}

static int parse_hf_shard_size(struct options *o, const char *arg)
{
	const char *const text = strchr(arg, '=') + 1;

	if (hfsplit_parse_size(text, &o->plan.shard_size))
		return 0;
	return bad_value(arg, "not a size in KB, MB, GB or TB");
}

/* A number of bytes, as 512M or 2G. */
static int parse_assemble(struct options *o, const char *arg)
{
	static const char units[] = "KMGT";
	const char *const text = strchr(arg, '=') + 1;
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
		return bad_value(arg, "not a size");
	o->backing.bound = (uint64_t)v << shift;
	return 0;
}

static int parse_index(struct options *o, const char *arg)
{
	const char *const text = strchr(arg, '=') + 1;
	char cwd[PATH_MAX];

	free(o->index.path);
	o->index.path = NULL;
	o->no_index = strcmp(text, "none") == 0;
	if (o->no_index)
		return 0;
	/* The server's directory is another one later. */
	if (*text == '/')
		o->index.path = strdup(text);
	else if (!*text || !getcwd(cwd, sizeof(cwd)) ||
		 asprintf(&o->index.path, "%s/%s", cwd, text) < 0)
		o->index.path = NULL;
	if (o->index.path)
		return 0;
	return bad_value(arg, "not a file's name");
}

static int parse_view(struct options *o, const char *arg)
{
	const char *const text = strchr(arg, '=') + 1;

	if (plan_parse_kind(text, &o->plan.kind))
		return 0;
	return bad_value(arg, "must be universal, hf or fp32");
}

static int take_operand(struct options *o, const char *arg)
{
	if (!o->source) {
		o->source = strdup(arg);
		return o->source ? 0 : -1;
	}
	if (!o->mountpoint) {
		o->mountpoint = strdup(arg);
		return o->mountpoint ? 0 : -1;
	}
	fprintf(stderr, "ucfs: too many arguments: %s\n", arg);
	return -1;
}

/* fuse_opt callback: 1 keeps the argument for libfuse, 0 drops it. */
static int take(void *data, const char *arg, int key, struct fuse_args *args)
{
	struct options *const o = data;

	(void)args;
	switch (key) {
	case FUSE_OPT_KEY_NONOPT: return take_operand(o, arg);
	case KEY_HELP: o->help = true; return 0;
	case KEY_VERSION: o->version = true; return 0;
	case KEY_FOREGROUND: o->foreground = true; return 0;
	case KEY_DEBUG: o->debug = o->foreground = true; return 1;
	case KEY_CRC: return parse_crc(o, arg);
	case KEY_DIALECT: return parse_dialect(o, arg);
	case KEY_HF_DTYPE:
		return parse_hf_dtype(o, arg);
	case KEY_HF_SHARD_SIZE:
		return parse_hf_shard_size(o, arg);
	case KEY_UID: o->has_uid = true; return parse_id(arg, &o->uid);
	case KEY_GID: o->has_gid = true; return parse_id(arg, &o->gid);
	case KEY_STREAM: o->backing.stream = true; return 0;
	case KEY_ASSEMBLE: return parse_assemble(o, arg);
	case KEY_IO_URING: return kernel_knows_rings();
	case KEY_INDEX: return parse_index(o, arg);
	case KEY_NOINDEX: return parse_index(o, "index=none");
	case KEY_VIEW: return parse_view(o, arg);
	case KEY_RW:
	case KEY_IGNORE: return 0;
	}
	/* Comments of fstab's other readers: x-systemd.automount and such. */
	return strncmp(arg, "x-", 2) != 0 && strncmp(arg, "X-", 2) != 0;
}

/* Drop the flags with which mount(8) calls a helper; they mean other things
 * than ours. */
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

static char *absolute(char **path, const char *what)
{
	char *const full = realpath(*path, NULL);

	if (!full)
		fprintf(stderr, "ucfs: %s %s: %s\n", what, *path,
			strerror(errno));
	free(*path);
	*path = full;
	return full;
}

/* A server that lists its own mount point would wait for itself. */
static int check_nesting(const struct options *o)
{
	const size_t n = strlen(o->source);

	if (strncmp(o->mountpoint, o->source, n) != 0 ||
	    (o->mountpoint[n] != '/' && o->mountpoint[n] != '\0'))
		return 0;
	fprintf(stderr, "ucfs: mount point %s lies within the source %s\n",
		o->mountpoint, o->source);
	return -1;
}

/* What the kernel shall know of us; commas would end an option early. */
static int add_mount_options(const struct options *o, struct fuse_args *args)
{
	char *fsname = NULL, *option = NULL;
	int rc;

	if (asprintf(&fsname, "fsname=%s", o->source) < 0)
		return -1;
	rc = fuse_opt_add_opt(&option, "ro,default_permissions,subtype=ucfs");
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

	*o = (struct options){ .plan.hugging_face = true };
	if (strcmp(name, "mount.ucfs") == 0)
		drop_helper_flags(o, &argc, argv);
	*fuse_args = (struct fuse_args)FUSE_ARGS_INIT(argc, argv);
	if (fuse_opt_parse(fuse_args, o, table, take) < 0)
		return -1;
	if (o->help || o->version)
		return 0;
	if (!o->source || !o->mountpoint) {
		fprintf(stderr, "ucfs: usage: ucfs SOURCE MOUNTPOINT"
				" [options]; see ucfs --help\n");
		return -1;
	}
	if (!absolute(&o->source, "source") ||
	    !absolute(&o->mountpoint, "mount point"))
		return -1;
	if (!o->index.path && !o->no_index)
		o->index = indexfile_default(o->source);
	return check_nesting(o) ? -1 : add_mount_options(o, fuse_args);
}

void options_done(struct options *o)
{
	free(o->source);
	free(o->mountpoint);
	free(o->index.path);
}
