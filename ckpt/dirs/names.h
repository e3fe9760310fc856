/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_NAMES_H
#define UCKPT_NAMES_H

#include <stdbool.h>

/* What a file of a tag directory is, by its name. */
enum ckfile_kind {
	CKFILE_OTHER,
	CKFILE_MODEL,	/* mp_rank_XX_model_states.pt */
	CKFILE_MODEL3,	/* zero_pp_rank_D_mp_rank_XX_model_states.pt (ZeRO-3) */
	CKFILE_OPTIM,	/* [bf16_]zero_pp_rank_D_mp_rank_XX_optim_states.pt */
	CKFILE_LAYER,	/* layer_XX-...-model_states.pt (pipeline) */
	CKFILE_EXPERT,	/* layer_L_expert_E_mp_rank_XX_model_states.pt */
	CKFILE_EXPERT_OLD,   /* expert_E_mp_rank_XX_model_states.pt: no layer */
	CKFILE_EXPERT_OPTIM, /* expp_rank_R_mp_rank_XX_optim_states.pt: no ZeRO */
};

struct ckname {
	enum ckfile_kind kind;
	unsigned dp; /* data-parallel rank; "pp" in the name is historical */
	unsigned mp; /* model-parallel rank: pipeline stage * tp + tensor rank;
		      * CKFILE_LAYER: the tensor rank alone */
	unsigned layer; /* of CKFILE_LAYER; CKFILE_EXPERT: counts MoE layers */
	unsigned expert; /* of CKFILE_EXPERT, in all of its layer */
};

/* Ranks above this are no ranks. */
#define NAMES_RANK_MAX 1000000u

/* Parse a file name (without directory).  Fields that the kind has not are 0. */
struct ckname names_parse(const char *name);

/* Can a parameter be called so?  Its name becomes a directory's, beside
 * optimizer_state.pt. */
bool names_is_param(const char *name);

/* Where a tag has tensors that were on NVMe, in a directory of each rank. */
#define NAMES_SWAP_DIR "offloaded_tensors"
#define NAMES_SWAP_SUFFIX ".tensor.swp"

/* Is this such a rank's directory ("rank07"), such a file? */
bool names_is_swap_rank(const char *name, unsigned *rank);
bool names_is_swapped(const char *name);

/* The release whose files we write. */
#define NAMES_DS_VERSION "0.19.8"

/* DeepSpeed's keys that more than one module reads. */
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
#define KEY_SHARED_PARAMS "shared_params"
#define KEY_UC_INFO "universal_checkpoint_info"

#endif
