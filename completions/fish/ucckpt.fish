# SPDX-License-Identifier: Apache-2.0
# fish completion for ucckpt(1)

complete -c ucckpt -f
complete -c ucckpt -n __fish_use_subcommand -a 'info check ls cat extract convert diff pack unpack extents'
complete -c ucckpt -n __fish_use_subcommand -l version -d 'Print the version'
complete -c ucckpt -n __fish_use_subcommand -s o -x -d 'Options of a mount'
complete -c ucckpt -l help -d 'Print help'
complete -c ucckpt -n '__fish_seen_subcommand_from info check ls cat extract convert diff pack' \
    -a '(__fish_complete_directories)'
complete -c ucckpt -n '__fish_seen_subcommand_from extents unpack' -F
complete -c ucckpt -n '__fish_seen_subcommand_from info check diff extents' -l json
complete -c ucckpt -n '__fish_seen_subcommand_from ls' -s l -l long -d 'Sizes and times'
complete -c ucckpt -n '__fish_seen_subcommand_from info' -l html -r
complete -c ucckpt -n '__fish_seen_subcommand_from info' -l quick
complete -c ucckpt -n '__fish_seen_subcommand_from info' -l parameters
complete -c ucckpt -n '__fish_seen_subcommand_from check' -l data
complete -c ucckpt -n '__fish_seen_subcommand_from diff' -l all
complete -c ucckpt -n '__fish_seen_subcommand_from diff' -l strict
complete -c ucckpt -n '__fish_seen_subcommand_from diff' -l rtol -x
complete -c ucckpt -n '__fish_seen_subcommand_from diff' -l atol -x
complete -c ucckpt -n '__fish_seen_subcommand_from check convert extract' -l part -x
set -l packing '__fish_seen_subcommand_from pack unpack'
complete -c ucckpt -n $packing -s o -l output -r
complete -c ucckpt -n '__fish_seen_subcommand_from pack unpack convert' -s j -l jobs -x
complete -c ucckpt -n '__fish_seen_subcommand_from unpack' -l check
set -l convert '__fish_seen_subcommand_from convert'
complete -c ucckpt -n $convert -l input_folder -x -a '(__fish_complete_directories)'
complete -c ucckpt -n $convert -l output_folder -x -a '(__fish_complete_directories)'
complete -c ucckpt -n $convert -l num_extract_workers -x
complete -c ucckpt -n $convert -l num_merge_workers -x
complete -c ucckpt -n $convert -l no_strict
complete -c ucckpt -n $convert -l inject_missing_state
complete -c ucckpt -n $convert -l crc -x -a 'exact zero'
complete -c ucckpt -n $convert -l stage -x -a 'native any 1 2 3'
complete -c ucckpt -n $convert -l rules -r
complete -c ucckpt -n $convert -l preset -x -a 'megatron-qkv-thirds megatron-qkv-by-head'
complete -c ucckpt -n $convert -l view -x -a 'universal hf fp32 dcp zero'
complete -c ucckpt -n $convert -l to -x -a 'universal hf fp32 dcp zero'
complete -c ucckpt -n $convert -l tag -x
complete -c ucckpt -n $convert -l ranks -x
complete -c ucckpt -n $convert -l hf_dtype -x -a 'fp32 bf16 fp16'
complete -c ucckpt -n $convert -l hf_shard_size -x
complete -c ucckpt -n $convert -l dcp_style -x -a 'fsdp2 flat titan titan_fused accelerate lightning fabric'
complete -c ucckpt -n $convert -l dcp_ranks -x
complete -c ucckpt -n $convert -l hf_config -x -a '(__fish_complete_directories)'
complete -c ucckpt -n $convert -l head_dim -x
complete -c ucckpt -n $convert -l readers -x
complete -c ucckpt -n $convert -l model -x
