/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BAD_H
#define TESTS_BAD_H

#include <stddef.h>

#include "tests/make/mkckpt.h"

/* Size of the intact checkpoints that are damaged. */
#define BAD_RANKS 3

#define STAGE(n) (1u << (n))
#define STAGES_12 (STAGE(1) | STAGE(2))
#define STAGES_ALL (STAGES_12 | STAGE(3))

/* A defect and its expected message. */
struct bad {
	const char *name;
	unsigned stages;
	const char *expect; /* expected in the message */
	const char *file;   /* also expected in the message */

	/* Statements (literal.h) that change this file before it is written, or shell commands that
	 * change the directory. */
	enum mkckpt_file kind;
	unsigned rank;
	const char *change, *shell;
};

#define SHARD_0 "zero_pp_rank_0_mp_rank_00_optim_states.pt"
#define SHARD_1 "zero_pp_rank_1_mp_rank_00_optim_states.pt"
#define MODEL "mp_rank_00_model_states.pt"
#define DIRECTORY "ucfs-test-" /* for messages that name no file */

/* Defects of files and directories, of model states, of optimizer shards. */
extern const struct bad bad_files[];
extern const size_t bad_files_n;
extern const struct bad bad_model[];
extern const size_t bad_model_n;
extern const struct bad bad_optim[];
extern const size_t bad_optim_n;

/* Defects of checkpoints with experts. */
extern const struct bad bad_experts[];
extern const size_t bad_experts_n;

#endif
