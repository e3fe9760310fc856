/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_KEYS_H
#define UCKPT_KEYS_H

/* The DeepSpeed release whose files we write. */
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
#define KEY_PARAM_FAMILIES "param_families"
#define KEY_UC_INFO "universal_checkpoint_info"

/* Of model states that are not DeepSpeed's: what they were made of, a list of what got
 * lost, and why there are no states of the optimizer, which is not read or is lost; for
 * people. */

#endif
