/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every source × every view × every fault × every way in: each file is right, or there
 * is one error with a text; the process lives.
 *
 *	matrix DIRECTORY [SOURCE]	DIRECTORY has the checkpoints, tests/good
 *
 * Each cell is a process of its own.  Its checkpoint is a copy of which one file is
 * damaged, before the source is opened or after its tree was listed; then all that
 * the library, a mount or `convert` makes of it is compared with what it was before.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/uckpt.h"
#include "tests/faults/halfway.h"
#include "tests/faults/matrix_tree.h"

#define NOBODY 65534
#define CELL_SECONDS 60
#define RANKS "4" /* of the re-cut view */

static const struct source {
	const char *name, *good, *tag;
	const char *files[4]; /* one of each kind, below the tag */
	unsigned flags;
} sources[] = {
#define PACKED 1u    /* the tag is in a pack */
#define OWN_WORDS 2u /* what changed is read anew, and refused as it is then */
	{ "stage-0",
	  "z0_fp32_dp2",
	  "global_step4",
	  { "mp_rank_00_model_states.pt" },
	  OWN_WORDS },
	{ "stage-1",
	  "z1_bf16_dp2",
	  "global_step4",
	  { "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
	    "mp_rank_00_model_states.pt" },
	  0 },
	{ "stage-2",
	  "z2_fp32_dp2",
	  "global_step4",
	  { "zero_pp_rank_1_mp_rank_00_optim_states.pt",
	    "mp_rank_00_model_states.pt" },
	  0 },
	{ "stage-3",
	  "z3_tied_frozen_buffers_dp2",
	  "global_step4",
	  { "zero_pp_rank_1_mp_rank_00_optim_states.pt",
	    "zero_pp_rank_1_mp_rank_00_model_states.pt",
	    "zero_pp_rank_0_mp_rank_00_model_states.pt" },
	  0 },
	{ "tensor-parallel",
	  "tp2_dp2_z3",
	  "global_step4",
	  { "zero_pp_rank_1_mp_rank_01_optim_states.pt",
	    "zero_pp_rank_0_mp_rank_01_model_states.pt" },
	  0 },
	{ "pipeline",
	  "pp2_dp1_z1_fp32",
	  "global_step4",
	  { "zero_pp_rank_0_mp_rank_01_optim_states.pt",
	    "layer_03-model_states.pt", "mp_rank_01_model_states.pt" },
	  0 },
	{ "experts",
	  "moe_ep2_dp2_z1",
	  "global_step4",
	  { "zero_pp_rank_1_mp_rank_00_optim_states.pt",
	    "layer_0_expert_3_mp_rank_00_model_states.pt",
	    "mp_rank_00_model_states.pt" },
	  0 },
	{ "experts of tensor-parallel ranks",
	  "folded_tp4_ep2_dp1_z1",
	  "global_step3",
	  { "zero_pp_rank_0_mp_rank_03_optim_states.pt",
	    "layer_1_expert_3_mp_rank_03_model_states.pt",
	    "mp_rank_01_model_states.pt" },
	  0 },
	{ "adapter",
	  "lora_named_z1_dp2",
	  "global_step4",
	  { "zero_pp_rank_1_mp_rank_00_optim_states.pt",
	    "mp_rank_00_model_states.pt" },
	  0 },
	{ "legacy",
	  "legacy_z3_fp32_dp2",
	  "global_step4",
	  { "zero_pp_rank_1_mp_rank_00_optim_states.pt",
	    "zero_pp_rank_0_mp_rank_00_model_states.pt" },
	  0 },
	{ "distributed",
	  "dcp_fsdp2_dp2_fp32",
	  "ckpt",
	  { "__1_0.distcp", ".metadata" },
	  OWN_WORDS },
	{ "distributed-safetensors",
	  "dcp_safetensors",
	  "ckpt",
	  { "__0_0.distcp" },
	  OWN_WORDS },
	{ "two-directories",
	  "dcp_two_dirs",
	  "step_4",
	  { "optimizer/__0_0.distcp", "model/.metadata" },
	  OWN_WORDS },
	{ "FSDP by rank",
	  "fsdp_verl_dp3",
	  "global_step_3/actor",
	  { "optim_world_size_3_rank_1.pt", "model_world_size_3_rank_0.pt" },
	  OWN_WORDS },
	{ "parts in safetensors",
	  "fsdp_hf_sharded",
	  "ckpt",
	  { "shard-00002-model-00001-of-00002.safetensors" },
	  OWN_WORDS },
	{ "megatron",
	  "dcp_mcore_flattened",
	  "iter_0000002",
	  { "__1_0.distcp", "common.pt" },
	  OWN_WORDS },
	{ "hugging-face-bin",
	  "hfdir_bin_sharded",
	  "",
	  { "pytorch_model-00002-of-00002.bin", "pytorch_model.bin.index.json" },
	  OWN_WORDS },
	{ "hugging-face",
	  "hfdir_gpt2_bf16_sharded",
	  "",
	  { "model-00002-of-00003.safetensors", "model.safetensors.index.json" },
	  OWN_WORDS },
	{ "pack", "z1_fp32_dp2", "global_step4", { "global_step4.ucpack" },
	  PACKED | OWN_WORDS },
};

enum fault {
	MISSING,
	TRUNCATED,
	GARBAGE,
	UNREADABLE,
	HALFWAY,
	REPLACED,
	WRITTEN,
	FAULTS
};

enum when { BEFORE, LISTED, WHENS };

static const char *const when_names[WHENS] = { "before it is opened",
					       "after it was listed" };

/* Words of the message, when a file is found so after the tree was listed. */
static const struct {
	const char *name, *words;
} fault_names[FAULTS] = {
	[MISSING] = { "missing", "No such file" },
	[TRUNCATED] = { "truncated", "was truncated" },
	[GARBAGE] = { "garbage", "was written to" },
	[UNREADABLE] = { "unreadable", "Permission denied" },
	[HALFWAY] = { "EIO half-way", "Input/output error" },
	[REPLACED] = { "replaced", "was replaced" },
	[WRITTEN] = { "written to", "was written to" },
};

static const struct form {
	const char *to, *suffix;
} forms[] = {
	{ "universal", "_universal" },
	{ "fp32", "_fp32" },
	{ "hf", "_hf" },
	{ "dcp", "_dcp" },
	{ "zero", "_dp" RANKS },
};

/* A cell, and what was read of its source when it was whole. */
struct cell {
	const struct source *source;
	const char *file; /* below the source */
	enum fault fault;
	enum when when;
	const char *way;
	const struct tree *truth;
	struct tree *got;
	char dir[64], run[128],
		path[256]; /* scratch, the source, and its faulty file */
	unsigned said;     /* warnings, and errors of what was opened */
	bool named;        /* does one of them name the file? */
	bool broken;
};

static char scratch[] = "/tmp/ucfs-matrix.XXXXXX";
static unsigned cells, failures;

__attribute__((format(printf, 2, 3))) static void broken(struct cell *c,
							 const char *fmt, ...)
{
	va_list ap;

	printf("%s: %s is %s %s, %s: ", c->source->name, c->file,
	       fault_names[c->fault].name, when_names[c->when], c->way);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	c->broken = true;
}

static bool is_before(enum fault f)
{
	return f != REPLACED && f != WRITTEN;
}

/* Damage the file. */
static void inflict(const struct cell *c)
{
	static const struct timespec now[2] = { { .tv_nsec = UTIME_NOW },
						{ .tv_nsec = UTIME_NOW } };
	char text[4096], other[300];
	struct stat st;
	int fd, rc = 0;

	memset(text, 'x', sizeof(text));
	if (stat(c->path, &st))
		abort();
	switch (c->fault) {
	case MISSING:
		rc = unlink(c->path);
		break;
	case TRUNCATED:
		rc = truncate(c->path, st.st_size / 2);
		break;
	case GARBAGE:
	case WRITTEN:
		fd = open(c->path, O_WRONLY | O_CLOEXEC);
		for (off_t at = c->fault == GARBAGE ? 0 : st.st_size / 2;
		     at < st.st_size; at += (off_t)sizeof(text))
			rc |= pwrite(fd, text,
				     st.st_size - at < (off_t)sizeof(text)
					     ? (size_t)(st.st_size - at)
					     : sizeof(text),
				     at) <= 0;
		rc |= futimens(fd, now);
		close(fd);
		break;
	case REPLACED: /* by a file that has the same size and time */
		snprintf(other, sizeof(other), "%s.new", c->path);
		fd = open(other, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
		rc = ftruncate(fd, st.st_size) ||
		     futimens(fd,
			      (struct timespec[2]){ st.st_mtim, st.st_mtim }) ||
		     rename(other, c->path);
		close(fd);
		break;
	case UNREADABLE:
		rc = chmod(c->path, 0);
		if (!geteuid())
			rc |= setgid(NOBODY) || setuid(NOBODY);
		break;
	case HALFWAY:
		rc = setenv(HALFWAY_FILE, c->path, 1);
		break;
	case FAULTS:
		abort();
	}
	if (rc)
		abort();
}

/* Does a message name the file?  One that was never seen is told by its rank. */
static bool is_explained(const struct cell *c)
{
	return c->named || c->got->named ||
	       (c->fault == MISSING && c->said &&
		(c->when == BEFORE || c->source->flags & OWN_WORDS));
}

/* Compare what was read with the truth of which paths begin with `prefix`. */
static void judge(struct cell *c, const char *prefix)
{
	const size_t len = strlen(prefix);
	unsigned lost = 0;

	for (unsigned i = 0; i < c->truth->n; i++) {
		const struct tree_file *const want = &c->truth->v[i], *got;

		/* The file itself is shown as it is, and so is its copy in a tree. */
		if (strncmp(want->path, prefix, len) ||
		    !strcmp(tree_name(want->path), tree_name(c->file)))
			continue;
		got = tree_find(c->got, "", want->path + len);
		if (!got)
			lost++;
		else if (got->size != want->size || got->hash != want->hash)
			broken(c, "%s has other bytes", want->path);
	}
	/* Who removes the pack removes what it shows. */
	if (lost && !c->got->failed && !is_explained(c) &&
	    !(c->source->flags & PACKED && c->fault == MISSING))
		broken(c, "%u files are gone without a word", lost);
	if (*c->got->text && !is_explained(c))
		broken(c, "\"%s\" does not name the file", c->got->text);
}

static struct tree_fault fault_of(const struct cell *c)
{
	const bool own = c->when == BEFORE || c->source->flags & OWN_WORDS;

	return (struct tree_fault){ c->file,
				    own ? "" : fault_names[c->fault].words };
}

static void take_message(void *arg, const char *text)
{
	struct cell *const c = arg;
	const struct tree_fault f = fault_of(c);

	c->said++;
	c->named |= tree_is_named(&f, text);
}

static struct uckpt *context(struct cell *c)
{
	struct uckpt *const u = uckpt_new();

	if (!u || uckpt_set(u, "ranks=" RANKS, NULL))
		abort();
	uckpt_set_calls(
		u, &(struct uckpt_calls){ .arg = c, .warning = take_message });
	return u;
}

static void by_library(struct cell *c)
{
	struct uckpt_error err = { "" };
	const struct tree_fault fault = fault_of(c);
	struct uckpt *const u = context(c);
	int rc;

	if (c->when == BEFORE)
		inflict(c);
	rc = uckpt_open(u, (const char *[]){ c->run }, 1, &err);
	if (rc) {
		take_message(c, err.text);
		if (c->when == LISTED)
			broken(c, "cannot open what is whole: %s", err.text);
	} else {
		if (c->when == LISTED) {
			tree_list_source(u);
			inflict(c);
		}
		tree_read_source(u, &fault, c->got);
	}
	uckpt_free(u);
	judge(c, "");
}

static void convert_form(struct cell *c, const struct form *f)
{
	struct uckpt *const u = uckpt_new();
	struct uckpt_done done = { 0 };
	struct uckpt_error err = { "" };
	char option[32], dest[200], prefix[64] = "";
	struct stat st;
	int rc;

	snprintf(option, sizeof(option), "view=%s", f->to);
	snprintf(dest, sizeof(dest), "%s/out%s", c->dir, f->suffix);
	if (*c->source->tag)
		snprintf(prefix, sizeof(prefix), "%s%s/", c->source->tag,
			 f->suffix);
	if (!u || uckpt_set(u, option, NULL) ||
	    (!strcmp(f->to, "zero") && uckpt_set(u, "ranks=" RANKS, NULL)))
		abort();
	uckpt_set_calls(
		u, &(struct uckpt_calls){ .arg = c, .warning = take_message });
	c->said = c->got->n = c->got->failed = 0;
	rc = uckpt_convert(u, (const char *[]){ c->run }, 1, dest, &done, &err);
	uckpt_free(u);
	if (!rc) {
		tree_read_dir(dest, c->got);
		judge(c, prefix);
	} else if (c->fault == MISSING ? !*err.text
				       : !strstr(err.text, tree_name(c->file))) {
		broken(c, "%s: the message does not name the file: %s", f->to,
		       err.text);
	} else if (!lstat(dest, &st)) {
		broken(c, "%s fails, and leaves %s: %s", f->to, dest, err.text);
	}
}

static void by_convert(struct cell *c)
{
	inflict(c);
	for (size_t i = 0; i < COUNT(forms); i++)
		if (*c->source->tag || !strcmp(forms[i].to, "universal"))
			convert_form(c, &forms[i]);
}

/* Start the server in the foreground; its messages go to the file `log`. */
static pid_t serve(const struct cell *c, const char *mnt, const char *log)
{
	const char *const build = getenv("top_builddir");
	char program[4096], preload[4096];
	const pid_t pid = fork();
	int fd;

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGTERM); /* unmounts */
	snprintf(program, sizeof(program), "%s/ucfs", build);
	snprintf(preload, sizeof(preload), "%s/tests/faults/halfway.so", build);
	fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	if (c->fault == HALFWAY)
		setenv("LD_PRELOAD", preload, 1);
	execl(program, "ucfs", "-f", "-o", "ranks=" RANKS, c->run, mnt,
	      (char *)NULL);
	_exit(127);
}

static bool is_mounted(const char *mnt, pid_t server)
{
	struct stat above, st;
	int status;

	for (int i = 0; i < 1000; i++) {
		if (stat(scratch, &above) || stat(mnt, &st))
			return false;
		if (above.st_dev != st.st_dev)
			return true;
		if (waitpid(server, &status, WNOHANG) == server)
			return false;
		usleep(5000);
	}
	return false;
}

static int unmount(const char *mnt, pid_t server)
{
	char command[300];
	int status = -1;

	snprintf(command, sizeof(command), "fusermount3 -u '%s'", mnt);
	for (int i = 0; i < 100 && system(command); i++)
		usleep(20000);
	waitpid(server, &status, 0);
	return status;
}

/* Take what the server said, but for its wish for the model's configuration. */
static void take_log(struct cell *c, const char *log)
{
	FILE *const f = fopen(log, "r");
	char line[2048];

	while (f && fgets(line, sizeof(line), f))
		if (!strstr(line, "config.json"))
			take_message(c, line);
	if (f)
		fclose(f);
}

/* Whoever reads the test's log may not have this machine. */
static void print_log(const char *log)
{
	FILE *const f = fopen(log, "r");
	char line[2048];

	while (f && fgets(line, sizeof(line), f))
		fputs(line, stdout);
	if (f)
		fclose(f);
}

static void by_mount(struct cell *c)
{
	char mnt[128], log[128];
	pid_t server;
	int status;

	snprintf(mnt, sizeof(mnt), "%s/mnt", c->dir);
	snprintf(log, sizeof(log), "%s/log", c->dir);
	if (mkdir(mnt, 0755))
		abort();
	if (c->fault == HALFWAY)
		inflict(c);
	server = serve(c, mnt, log);
	if (!is_mounted(mnt, server)) {
		take_log(c, log);
		if (c->fault != HALFWAY || !c->named)
			broken(c, "the mount fails, see %s", log);
		return;
	}
	tree_list_dir(mnt);
	if (c->fault != HALFWAY)
		inflict(c);
	tree_read_dir(mnt, c->got);
	status = unmount(mnt, server);
	if (status) {
		broken(c, "the server ends with status %#x", status);
		print_log(log);
	}
	take_log(c, log);
	judge(c, "");
}

static void set_up(struct cell *c)
{
	char from[4096];

	snprintf(c->dir, sizeof(c->dir), "%s/%u", scratch, cells);
	snprintf(c->run, sizeof(c->run), "%s/run", c->dir);
	snprintf(from, sizeof(from), "%s/template", scratch);
	if (mkdir(c->dir, 0777) || chmod(c->dir, 0777))
		abort();
	tree_copy(from, c->run);
	snprintf(c->path, sizeof(c->path), "%s/%s%s%s", c->run,
		 c->source->flags & PACKED ? "" : c->source->tag,
		 c->source->flags & PACKED || !*c->source->tag ? "" : "/",
		 c->file);
}

static void remove_dir(const char *dir)
{
	char command[300];

	snprintf(command, sizeof(command), "rm -rf '%s' 2>&1 | head -n 1", dir);
	if (system(command))
		printf("cannot remove %s\n", dir);
}

/* Run a cell in a process of its own. */
static void run_cell(struct cell c, const char *way, void (*fn)(struct cell *c))
{
	pid_t pid;
	int status;

	c.way = way;
	c.got->n = c.got->failed = 0;
	cells++;
	set_up(&c);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		alarm(CELL_SECONDS);
		fn(&c);
		exit(c.broken); /* with the check for leaks */
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		abort();
	if (WIFSIGNALED(status))
		broken(&c, "the process is ended by signal %d",
		       WTERMSIG(status));
	else if (WEXITSTATUS(status) > 1)
		broken(&c, "the process ends with status %d",
		       WEXITSTATUS(status));
	failures += status != 0;
	if (!status)
		remove_dir(c.dir);
}

/* Pack a tag in a process of its own, since threads of the library would stay. */
static void pack_tag(const char *tag, const char *pack)
{
	struct uckpt_error err = { "" };
	struct uckpt_done done;
	const pid_t pid = fork();
	int status;

	if (!pid) {
		struct uckpt *const u = uckpt_new();
		const int rc = uckpt_pack(u, tag, pack, &done, &err);

		if (rc)
			printf("%s: %s\n", pack, err.text);
		uckpt_free(u);
		exit(rc != 0);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		exit(1);
}

/* The run that cells copy: that of tests/good, or with its tag in a pack. */
static void make_template(const struct source *s, const char *good)
{
	char from[4096], to[100], tag[4200], pack[300];

	snprintf(from, sizeof(from), "%s/%s", good, s->good);
	snprintf(to, sizeof(to), "%s/template", scratch);
	remove_dir(to);
	if (!(s->flags & PACKED)) {
		tree_copy(from, to);
		return;
	}
	snprintf(tag, sizeof(tag), "%s/%s", from, s->tag);
	snprintf(pack, sizeof(pack), "%s/%s", to, s->files[0]);
	if (mkdir(to, 0755))
		abort();
	pack_tag(tag, pack);
}

/* Read the whole source, in a process of its own as the cells do. */
static void read_truth(const struct source *s, struct tree *truth)
{
	struct cell c = { .source = s, .file = s->files[0] };
	struct uckpt_error err = { "" };
	char run[100];
	const pid_t pid = fork();
	int status;

	if (!pid) {
		struct uckpt *const u = context(&c);

		snprintf(run, sizeof(run), "%s/template", scratch);
		if (uckpt_open(u, (const char *[]){ run }, 1, &err))
			printf("%s: %s\n", s->name, err.text);
		else
			tree_read_source(u, NULL, truth);
		uckpt_free(u);
		exit(!truth->n || truth->failed);
	}
	if (waitpid(pid, &status, 0) != pid || status) {
		printf("%s: the whole checkpoint cannot be read (%u files, %u errors)\n",
		       s->name, truth->n, truth->failed);
		exit(1);
	}
}

static void run_source(const struct source *s, unsigned mounts, struct tree *truth,
		       struct tree *got)
{
	unsigned nfiles = 0;

	while (nfiles < COUNT(s->files) && s->files[nfiles])
		nfiles++;
	read_truth(s, truth);
	for (enum fault f = 0; f < FAULTS; f++) {
		for (unsigned i = 0; i < nfiles; i++) {
			struct cell c = { .source = s,
					  .file = s->files[i],
					  .fault = f,
					  .truth = truth,
					  .got = got };

			if (is_before(f)) {
				run_cell(c, "library", by_library);
				run_cell(c, "convert", by_convert);
			}
			c.when = LISTED;
			run_cell(c, "library", by_library);
			/* A server with sanitizers starts five times as slowly. */
			if (i < mounts && (f != UNREADABLE || geteuid()))
				run_cell(c, "mount", by_mount);
		}
	}
}

/* Can a file system be mounted here? */
static bool can_mount(void)
{
	char program[4096];

	snprintf(program, sizeof(program), "%s/ucfs", getenv("top_builddir"));
	return !access(program, X_OK) && !access("/dev/fuse", R_OK | W_OK) &&
	       !system("command -v fusermount3 >/dev/null");
}

int main(int argc, char **argv)
{
	const char *const sanitize = getenv("sanitize");
	const bool sanitized = sanitize && strcmp(sanitize, "no") != 0;
	/* Files of a source that are damaged under a mount. */
	const unsigned mounts = !can_mount() ? 0 : sanitized ? 1 : COUNT(sources->files);
	struct tree *const truth = tree_new(), *const got = tree_new();

	if (argc < 2 || !mkdtemp(scratch) || chmod(scratch, 0755)) {
		fprintf(stderr, "usage: matrix DIRECTORY [SOURCE]\n");
		return 2;
	}
	if (!mounts)
		printf("no mounts here: the library and convert only\n");
	for (size_t i = 0; i < COUNT(sources); i++) {
		if (argc > 2 && strcmp(argv[2], sources[i].name))
			continue;
		make_template(&sources[i], argv[1]);
		run_source(&sources[i], mounts, truth, got);
	}
	printf("%u cells, %u failures\n", cells, failures);
	if (!failures)
		remove_dir(scratch);
	return failures != 0;
}
