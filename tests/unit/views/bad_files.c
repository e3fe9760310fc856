/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Defects of directories and of whole files: missing, duplicate, or not written
 * by torch.save.
 */
#include "ckpt/base/array.h"
#include "tests/unit/views/bad.h"

/* Replace bytes in a file that contains them. */
#define REPLACE(file, from, to)                              \
	"LC_ALL=C sed 's!" from "!" to "!' " file \
	" >t; if cmp -s t " file "; then exit 1; fi; mv t " file

#define FILES(name, stages, shell, file, expect)                          \
	{                                                                 \
#name, stages, expect, file, MKCKPT_OPTIM, 0, NULL, shell \
	}

const struct bad bad_files[] = {
	FILES(missing rank, STAGES_ALL, "rm " SHARD_1, DIRECTORY,
	      "optimizer shard of data-parallel rank 1, model-parallel rank 0"
	      " is missing"),
	FILES(missing last rank, STAGES_ALL, "rm zero_pp_rank_2_*", DIRECTORY,
	      "ranks 2 to 2 are missing"),
	FILES(missing model states, STAGES_ALL, "rm *model_states.pt",
	      DIRECTORY, "no *_model_states.pt file: it is missing"),
	FILES(missing model states of a rank, STAGE(3),
	      "rm zero_pp_rank_1_" MODEL, DIRECTORY,
	      "model-states file of data-parallel rank 1"),
	FILES(no optimizer, STAGE(3), "rm *optim_states.pt", DIRECTORY,
	      "which with ZeRO-3 alone have the weights"),
	FILES(empty directory, STAGES_ALL, "rm *", DIRECTORY,
	      "no DeepSpeed checkpoint here"),
	FILES(no directory, STAGE(1), "rm -r \"$PWD\"", DIRECTORY,
	      "cannot open: No such file"),
	FILES(one rank twice, STAGES_ALL,
	      "cp " SHARD_1 " zero_pp_rank_1_mp_rank_00optim_states.pt", DIRECTORY,
	      "is there twice"),
	FILES(model states of another stage, STAGE(3),
	      "mv zero_pp_rank_0_" MODEL " " MODEL "; rm zero_pp_rank_*_" MODEL,
	      SHARD_0, "are of stage 1 or 2"),
	FILES(tensor parallel in part, STAGES_12,
	      "cp " SHARD_0 " zero_pp_rank_0_mp_rank_01_optim_states.pt;"
	      " cp " MODEL " mp_rank_01_model_states.pt",
	      DIRECTORY, "rank 1, model-parallel rank 1 is missing"),
	FILES(experts, STAGES_ALL, "touch layer_0_expert_3_" MODEL, DIRECTORY,
	      "the file of expert 0 in MoE layer 0 is missing"),
	FILES(dangling link, STAGES_ALL, "ln -sf nowhere " SHARD_1, SHARD_1,
	      "cannot open"),
	FILES(fifo, STAGES_ALL, "rm " SHARD_1 "; mkfifo " SHARD_1, SHARD_1,
	      "not a regular file"),
	FILES(directory for a file, STAGES_ALL,
	      "rm " SHARD_0 "; mkdir " SHARD_0, SHARD_0, "not a regular file"),
	FILES(ranks swapped, STAGES_12,
	      "mv " SHARD_0 " t; mv " SHARD_1 " " SHARD_0 "; mv t " SHARD_1,
	      SHARD_0, "disagree"),

	FILES(text file, STAGES_ALL,
	      "echo version https://git-lfs.github.com/spec/v1 >" SHARD_1,
	      SHARD_1, "not a file of torch.save"),
	/* The file ends after its second pickle. */
	FILES(container of old torch, STAGES_ALL,
	      "printf '\\200\\002\\212\\012\\154\\374\\234\\106\\371\\040\\152"
	      "\\250\\120\\031\\056\\200\\002M\\351\\003.' >" SHARD_1,
	      SHARD_1, "sys_info+0x0: pickle ends without STOP"),
	FILES(garbage at the end, STAGES_ALL, "printf garbage >>" SHARD_1,
	      SHARD_1, "no zip directory at its end"),
	FILES(big endian, STAGES_ALL, REPLACE(SHARD_1, "little", "bigbig"), SHARD_1,
	      "big-endian"),
	FILES(storage missing, STAGES_ALL,
	      REPLACE(SHARD_1, "archive/data/1", "archive/data/x"), SHARD_1,
	      "storage data/1 is missing"),
	FILES(pickle missing, STAGES_ALL,
	      REPLACE(SHARD_1, "archive/data.pkl", "archive/data.pkx"), SHARD_1,
	      "no data.pkl in it"),
	/* A string becomes bytes, which can be read but not written into optimizer_state.pt. */
	FILES(bytes object, STAGES_ALL, REPLACE(SHARD_0, "X\\(....cur_scale\\)", "B\\1"),
	      SHARD_0, "bytes objects cannot be written in protocol 2"),
	FILES(zip directory damaged, STAGES_ALL,
	      REPLACE(SHARD_1, "PK\\x01\\x02", "PK\\x01X"), SHARD_1,
	      "entry 0 is malformed"),
};
const size_t bad_files_n = COUNT(bad_files);
