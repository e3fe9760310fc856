/* SPDX-License-Identifier: Apache-2.0 */
/* The options of ucfs, and the help about them. */
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/nearest.h"
#include "fs/log/log.h"
#include "fs/options.h"
#include "fs/options_impl.h"

const struct fuse_opt options_table[] = {
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
	FUSE_OPT_KEY("no_cache", KEY_GONE),
	FUSE_OPT_KEY("cache_size=%s", KEY_GONE),
	FUSE_OPT_KEY("readahead=%s", KEY_READAHEAD),
	FUSE_OPT_KEY("io_uring", KEY_IO_URING),
	FUSE_OPT_KEY("index=%s", KEY_GONE),
	FUSE_OPT_KEY("log=%s", KEY_LOG),
	FUSE_OPT_KEY("check", KEY_CHECK),
	FUSE_OPT_KEY("view=%s", KEY_VIEW),
	FUSE_OPT_KEY("ranks=%s", KEY_RANKS),
	FUSE_OPT_KEY("replace", KEY_REPLACE),
	FUSE_OPT_KEY("deadline=%s", KEY_REMOTE),
	FUSE_OPT_KEY("manifest=%s", KEY_REMOTE),
	FUSE_OPT_KEY("cache_dir=%s", KEY_GONE),
	FUSE_OPT_KEY("cache_bytes=%s", KEY_GONE),
	FUSE_OPT_KEY("ca_file=%s", KEY_REMOTE),
	FUSE_OPT_KEY("s3_endpoint=%s", KEY_REMOTE),
	FUSE_OPT_KEY("s3_region=%s", KEY_REMOTE),
	FUSE_OPT_KEY("s3_anonymous", KEY_REMOTE),
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
	printf("usage: ucfs SOURCE... MOUNTPOINT [options]\n"
	       "\n"
	       "Show a DeepSpeed ZeRO checkpoint as a universal checkpoint.\n"
	       "SOURCE is a run directory, a tag directory, a pack of one, or a Hugging\n"
	       "Face directory, also by http://, https:// or s3://.  Several are one whose\n"
	       "files are spread over them.\n"
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
	       "        readahead=SIZE    memory for what is read ahead from storage that is\n"
	       "                          far away (default: 1/64 of the memory, at most\n"
	       "                          256M); 0 turns that off\n"
	       "        debug             the same as -d\n"
	       "        no_strict, inject_missing_state\n"
	       "                          flags of the converter, which are always on\n"
	       "        io_uring          use io_uring for requests, if available\n"
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
	       "        deadline=SECONDS  longest time of a request to a server, with\n"
	       "                          its retries (default: 60)\n"
	       "        manifest=FILE     names of the files below an http or https\n"
	       "                          SOURCE whose server lists none\n"
	       "        ca_file=FILE      certificates that servers are checked by\n"
	       "        s3_endpoint=URL, s3_region=NAME\n"
	       "                          where s3 SOURCEs are\n"
	       "        s3_anonymous      sign no requests\n"
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

/* Suggest the nearest option, but none that has no effect. */
int options_report_unknown(const char *arg)
{
	const size_t len = strcspn(arg, "=");
	const char *const value = arg + len, *dash = arg[0] == '-' ? "" : "-o ";
	struct nearest near = nearest_begin(arg, len);
	bool wants_value;

	for (const struct fuse_opt *o = options_table; o->templ; o++)
		if (o->value != KEY_IGNORE && o->value != KEY_GONE &&
		    (o->templ[0] == '-') == !*dash)
			nearest_consider(&near, o->templ,
					 strcspn(o->templ, "="));
	if (!near.name) {
		log_error("unknown option %s%s; see ucfs --help", dash, arg);
		return -1;
	}
	wants_value = near.name[near.name_len] == '=';
	if (near.distance == 0)
		log_error("option %s%s: %s", dash, arg,
			  wants_value ? "needs a value" : "takes no value");
	else
		log_error("unknown option %s%s; did you mean %s%.*s%s?", dash,
			  arg, dash, (int)near.name_len, near.name,
			  !wants_value ? ""
			  : *value     ? value
				       : "=...");
	return -1;
}
