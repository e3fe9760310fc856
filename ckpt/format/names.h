/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_NAMES_H
#define UCKPT_NAMES_H

#include <limits.h>
#include <stdbool.h>

/* The kind of a file in a tag directory, by its name.  Files are numbered in this order
 * (zero_dir.h). */
enum ckpt_file_kind {
	CKPT_FILE_OTHER,
	CKPT_FILE_OPTIM,  /* [bf16_]zero_pp_rank_D_mp_rank_XX_optim_states.pt */
	CKPT_FILE_MODEL,  /* mp_rank_XX_model_states.pt */
	CKPT_FILE_MODEL3, /* zero_pp_rank_D_mp_rank_XX_model_states.pt (ZeRO-3) */
	CKPT_FILE_EXPERT, /* layer_L_expert_E_mp_rank_XX_model_states.pt */
	CKPT_FILE_SWAPPED, /* a tensor in NAMES_SWAP_DIR */
	CKPT_FILE_LAYER,  /* layer_XX-...-model_states.pt (pipeline) */
	CKPT_FILE_EXPERT_OPTIM, /* expp_rank_D_mp_rank_XX_optim_states.pt: no ZeRO */
	CKPT_FILE_EXPERT_OLD, /* expert_E_mp_rank_XX_model_states.pt: no layer */
	CKPT_FILE_KINDS,
};

struct ckname {
	enum ckpt_file_kind kind;
	unsigned dp; /* data-parallel rank; "pp" in the name is historical.
		      * CKPT_FILE_EXPERT_OPTIM: the expert-parallel rank */
	unsigned mp; /* model-parallel rank: pipeline stage * tp + tensor rank;
		      * CKPT_FILE_LAYER: the tensor rank alone */
	unsigned layer; /* of CKPT_FILE_LAYER; CKPT_FILE_EXPERT: counts MoE layers */
	unsigned expert; /* of CKPT_FILE_EXPERT: its number in the whole layer */
};

/* Larger numbers in names are not taken for ranks. */
#define NAMES_RANK_MAX 1000000u

/* Parse a file name without directory.  Fields that the kind lacks are 0. */
struct ckname names_parse(const char *name);

/* Format the name that DeepSpeed gives to a file with these numbers.  `bf16`: the run uses that
 * type, which is visible in the names of optimizer files. */
void names_format(struct ckname n, bool bf16, char name[NAME_MAX + 1]);

/* Is it the name of a file in a directory: neither a path nor "." or ".."? */
bool names_is_file(const char *name);

/* Can a parameter have this name? It becomes the path of a directory beside optimizer_state.pt.  If
 * the name is a longer path, no component may end like a state's file. */
bool names_is_param(const char *name);

/* The directory in a tag for tensors offloaded to NVMe; it has a directory per rank. */
#define NAMES_SWAP_DIR "offloaded_tensors"
#define NAMES_SWAP_SUFFIX ".tensor.swp"

/* Is this the directory of a rank ("rank07") in NAMES_SWAP_DIR? */
bool names_is_swap_rank(const char *name, unsigned *rank);

/* Return a tied module's name for the parameter tied_modules.KEY.NAME; NULL if it is not in a tied
 * module (runtime/pipe/module.py). */
#define NAMES_TIED "tied_modules."
const char *names_in_tied(const char *name);

bool names_ends_with(const char *s, const char *tail);

/* The file that describes a PyTorch distributed checkpoint, and is written last. */
#define DCP_METADATA ".metadata"

/* Names of directories for a model and its optimizer: Accelerate's (utils/constants.py,
 * utils/fsdp_utils.py), where the second may be missing, and those of other programs. */
#define DCP_PAIR_MODEL "pytorch_model_fsdp_0"
#define DCP_PAIR_OPTIMIZER "optimizer_0"
#define DCP_PAIRS 3
extern const char *const names_dcp_pairs[DCP_PAIRS][2];

/* The DeepSpeed release whose file formats we write. */
#define NAMES_DS_VERSION "0.19.8"

/* Keys of DeepSpeed that several modules read. */
#define KEY_OPTIMIZER_STATE_DICT "optimizer_state_dict"
#define KEY_BASE_OPTIMIZER_STATE "base_optimizer_state"
#define KEY_PARAM_GROUPS "param_groups"
#define KEY_FP32_GROUPS "single_partition_of_fp32_groups"
#define KEY_FP32_FLAT_GROUPS "fp32_flat_groups"
#define KEY_PARAM_SLICE_MAPPINGS "param_slice_mappings"
#define KEY_GROUP_PADDINGS "group_paddings"
#define KEY_PARTITION_COUNT "partition_count"
#define KEY_ZERO_STAGE "zero_stage"
#define KEY_DS_VERSION "ds_version"
#define KEY_DS_CONFIG "ds_config"
#define KEY_FROZEN_SHAPES "frozen_param_shapes"
#define KEY_FROZEN_FRAGMENTS "frozen_param_fragments"
#define KEY_SHARED_PARAMS "shared_params"
#define KEY_FOLDING "folding"
#define KEY_PARTITION_GROUPS "ds_zero_partition_groups"
#define KEY_PARAM_FAMILIES "param_families"
#define KEY_UC_INFO "universal_checkpoint_info"

#endif
