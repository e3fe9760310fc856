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
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/uckpt.h"
#include "tests/faults/matrix_cell.h"
#include "tests/faults/matrix_tree.h"
#include "tests/support/sampled.h"

#define CELL_SECONDS 60

static const struct source sources[] = {
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

static char scratch[] = "/tmp/ucfs-matrix.XXXXXX";
static unsigned cells, failures;

static bool is_before(enum fault f)
{
	return f != REPLACED && f != WRITTEN;
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

/* Run a cell in its own process. */
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
		exit(c.broken); /* exit checks for leaks */
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		abort();
	if (WIFSIGNALED(status))
		cell_broken(&c, "the process is ended by signal %d",
		       WTERMSIG(status));
	else if (WEXITSTATUS(status) > 1)
		cell_broken(&c, "the process ends with status %d",
		       WEXITSTATUS(status));
	failures += status != 0;
	if (!status)
		remove_dir(c.dir);
}

/* Pack a tag in a separate process: threads of the library would remain. */
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

/* Make the run that cells copy: from tests/good, or with its tag in a pack. */
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

/* Read the whole source in a separate process, like the cells. */
static void read_truth(const struct source *s, struct tree *truth)
{
	struct cell c = { .source = s, .file = s->files[0] };
	struct uckpt_error err = { "" };
	char run[100];
	const pid_t pid = fork();
	int status;

	if (!pid) {
		struct uckpt *const u = cell_context(&c);

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

static void run_source(const struct source *s, bool mounts, struct tree *truth,
		       struct tree *got)
{
	static unsigned n; /* mounts: sanitizers see every third */
	const unsigned step = sampled_step(3);
	unsigned nfiles = 0;

	while (nfiles < COUNT(s->files) && s->files[nfiles])
		nfiles++;
	read_truth(s, truth);
	for (enum fault f = 0; f < FAULTS; f++) {
		for (unsigned i = f % (nfiles < step ? nfiles : step); i < nfiles; i += step) {
			struct cell c = { .source = s,
					  .file = s->files[i],
					  .fault = f,
					  .truth = truth,
					  .got = got };

			if (is_before(f)) {
				run_cell(c, "library", cell_by_library);
				run_cell(c, "convert", cell_by_convert);
			}
			c.when = LISTED;
			run_cell(c, "library", cell_by_library);
			if (mounts && ++n % step == 0 && (f != UNREADABLE || geteuid()))
				run_cell(c, "mount", cell_by_mount);
		}
	}
}

/* Return whether file systems can be mounted here. */
static bool can_mount(void)
{
	char program[4096];

	snprintf(program, sizeof(program), "%s/ucfs", getenv("top_builddir"));
	return !access(program, X_OK) && !access("/dev/fuse", R_OK | W_OK) &&
	       !system("command -v fusermount3 >/dev/null");
}

int main(int argc, char **argv)
{
	const bool mounts = can_mount();
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
