/* SPDX-License-Identifier: Apache-2.0 */
/* The options of ucfs that the library does not have, with the fields they set. */
#include <errno.h>
#include <fcntl.h>
#include <fuse_opt.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/text.h"
#include "ckpt/uckpt.h"
#include "fs/log/log.h"
#include "fs/options.h"

/* An option as given: "crc=zero".  A setter returns NULL, or an error text. */
struct given {
	const char *arg;
	size_t name_len;
	const char *value; /* after the '='; NULL: there is none */
	const struct row *row;
};

typedef const char *setter(struct options *o, const struct given *g);

/* A row of options that are handled in the same way. */
struct row {
	const char *names; /* separated by blanks; '=' after a name: it needs a value */
	size_t flag; /* offset of a bool that is set, or 0 */
	setter *set;
	const char *wrong; /* message about a wrong value; an option without `set` is always
	                    * wrong */
	bool keep;         /* for libfuse */
	bool hidden; /* has no effect, or is refused: never suggested */
};

/* Store the absolute name, since the server changes its working directory. */
static const char *set_log(struct options *o, const struct given *g)
{
	char cwd[PATH_MAX];

	free(o->log);
	o->log = NULL;
	o->log_here = strcmp(g->value, "-") == 0;
	if (o->log_here)
		return NULL;
	if (*g->value == '/')
		o->log = strdup(g->value);
	else if (!*g->value || !getcwd(cwd, sizeof(cwd)) ||
		 asprintf(&o->log, "%s/%s", cwd, g->value) < 0)
		o->log = NULL;
	return o->log ? NULL : g->row->wrong;
}

/* The descriptor is inherited, and thus open. */
static const char *set_until(struct options *o, const struct given *g)
{
	int len = 0;

	return sscanf(g->value, "%d%n", &o->until, &len) == 1 &&
			       !g->value[len] && fcntl(o->until, F_GETFD) >= 0
		       ? NULL
		       : g->row->wrong;
}

/* Let other users use the mount. */
static const char *set_shared(struct options *o, const struct given *g)
{
	uckpt_set(o->u, g->arg, NULL);
	return NULL;
}

#define FLAG(field) .flag = offsetof(struct options, field)

static const struct row rows[] = {
	{ "-h --help", FLAG(help) },
	{ "-V --version", FLAG(version) },
	{ "-f --foreground", FLAG(foreground) },
	{ "-d --debug debug", FLAG(debug) },
	{ "allow_other", .set = set_shared, .keep = true },
	{ "auto_unmount", FLAG(auto_unmount) },
	{ "log=", .set = set_log, .wrong = "not a file name" },
	{ "nonempty", FLAG(nonempty) },
	{ "rmdir", FLAG(rmdir) },
	{ "until=", .set = set_until, .wrong = "not an open descriptor" },
	{ "remount",
	  .wrong = "no option can be changed while it is mounted: unmount it and mount again" },
	/* Options of libfuse, fusermount3 and the kernel. */
	{ "allow_root fsname= subtype= max_read= suid nosuid dev"
	  " nodev exec noexec sync async dirsync atime noatime context="
	  " fscontext= defcontext= rootcontext=",
	  .keep = true },
	/* Options of the library that have no effect on a mount. */
	{ "no_strict", .wrong = "is an option of ucckpt convert: a mount always does so",
	  .hidden = true },
	{ "part= jobs= readers= rtol= atol=", .wrong = "is an option of ucckpt's commands",
	  .hidden = true },
	/* A mount is always read-only and checks permissions. */
	{ "rw ro default_permissions", .hidden = true },
	/* Options of mount(8), its callers and systemd.  Some versions of libfuse reject the
	 * second half. */
	{ "defaults auto noauto user user= nouser users nousers owner noowner"
	  " group nogroup nofail _netdev comment="
	  " relatime norelatime strictatime nostrictatime diratime nodiratime"
	  " lazytime nolazytime symfollow nosymfollow mand nomand silent loud"
	  " iversion noiversion",
	  .hidden = true },
};

/* Return the next name of a row with its length, which includes a '='; NULL at the
 * end. */
static const char *next_name(const char *at, size_t *len)
{
	at += strspn(at, " ");
	*len = strcspn(at, " ");
	return *at ? at : NULL;
}

static const struct row *find_row(const struct given *g)
{
	const size_t want = g->name_len + (g->value != NULL);
	size_t len;

	for (size_t i = 0; i < COUNT(rows); i++)
		for (const char *name = rows[i].names;
		     (name = next_name(name, &len)); name += len)
			if (len == want && strncmp(name, g->arg, len) == 0)
				return &rows[i];
	return NULL;
}

/* Report an unknown option, or one with a wrong or missing value.  Returns -1. */
static int refuse(const struct given *g)
{
	const char *dash = g->arg[0] == '-' ? "" : "-o ";
	struct suggestion near = suggest_begin(g->arg);
	struct errmsg why;
	const char *name;
	size_t len;

	for (size_t i = 0; i < COUNT(rows); i++)
		for (name = rows[i].names; !rows[i].hidden && (name = next_name(name, &len));
		     name += len)
			if ((*name == '-') == !*dash)
				suggest_consider(&near, name, len);
	for (size_t i = 0; *dash && (name = uckpt_option_name(i)); i++)
		suggest_consider(&near, name, strlen(name));
	suggest_end(&near, "", &why);
	log_error("%s%s: %s%s", dash, g->arg, why.text, near.name ? "" : "; see ucfs --help");
	return -1;
}

static int take_operand(struct options *o, const char *arg)
{
	if (array_reserve(&o->operands, &o->operands_cap, o->noperands + 1,
			  sizeof(*o->operands)) &&
	    (o->operands[o->noperands] = strdup(arg))) {
		o->noperands++;
		return 0;
	}
	log_error("out of memory");
	return -1;
}

/* Set an option of the library. */
static int take_option(struct options *o, const struct given *g)
{
	const bool more = o->ranks && *g->arg >= '0' && *g->arg <= '9';
	struct uckpt_error err = { "" };
	char ranks[32];
	int rc;

	/* The rest of ranks=N,N: libfuse splits options at commas. */
	snprintf(ranks, sizeof(ranks), "ranks=%s", g->arg);
	rc = uckpt_set(o->u, more ? ranks : g->arg, &err);
	if (rc == -ENOENT)
		return refuse(g);
	if (rc)
		log_error("-o %s", err.text);
	o->ranks = more || strncmp(g->arg, "ranks=", 6) == 0;
	return rc ? -1 : 0;
}

int options_take(void *options, const char *arg, int key, struct fuse_args *args)
{
	struct options *o = options;
	const size_t len = strcspn(arg, "=");
	struct given g = { arg, len, arg[len] ? arg + len + 1 : NULL, NULL };
	const struct row *row = g.row = find_row(&g);
	const char *wrong = NULL;

	(void)args;
	if (key == FUSE_OPT_KEY_NONOPT)
		return take_operand(o, arg);
	if (row) {
		if (row->flag)
			*(bool *)((char *)o + row->flag) = true;
		if (row->set)
			wrong = row->set(o, &g);
		else
			wrong = row->wrong;
	} else if (strncmp(arg, "x-", 2) == 0 || strncmp(arg, "X-", 2) == 0) {
		/* Options for other readers of fstab, such as x-systemd.automount. */
		return 0;
	} else {
		return take_option(o, &g);
	}
	if (wrong) {
		log_error("-o %s: %s", arg, wrong);
		return -1;
	}
	return row && row->keep;
}

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
	       "                      mount options; those that are needed most:\n"
	       "        ranks=N[,N]...    list views *_dpN: tags as N data-parallel\n"
	       "                          ranks would have saved them; N_zS: with\n"
	       "                          ZeRO stage S\n"
	       "        replace           show these views instead of the tags; needs\n"
	       "                          ranks=N, with one N\n"
	       "        view=KIND         view of a tag directory: universal (default),\n"
	       "                          hf, fp32, dcp, or zero with ranks=N\n"
	       "        hf_dtype=TYPE     type of the weights in *_hf views: fp32\n"
	       "                          (default), bf16 or fp16\n"
	       "        stage=native|any  a tree that loads into the ZeRO stage it\n"
	       "                          was saved with (default), or into any\n"
	       "        preset=NAME       merge rules of Megatron-DeepSpeed:\n"
	       "                          megatron-qkv-thirds, megatron-qkv-by-head\n"
	       "        check             open every file of a tag before it is served,\n"
	       "                          and refuse files of different steps\n"
	       "        allow_other       let other users read what they may read of\n"
	       "                          the source\n"
	       "        auto_unmount      unmount when the server dies\n"
	       "        s3_endpoint=URL   where s3 SOURCEs are\n"
	       "\n"
	       "The manual, ucfs(1), has all options.\n"
	       "To unmount: fusermount3 -u MOUNTPOINT, or umount.\n");
}
