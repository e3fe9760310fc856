# SPDX-License-Identifier: Apache-2.0
# fish completion for uctrain(1): the program knows its flags

complete -c uctrain -f -a '(uctrain --help=all 2>/dev/null | string replace -rf "^  (--[a-z_0-9]+).*" "\$1")'
complete -c uctrain -l model -x -a 'gpt2-dsuc gpt2 gpt2-medium gpt2-large gpt2-xl'
complete -c uctrain -l dtype -x -a 'fp32 bf16 fp16'
complete -c uctrain -l communication_data_type -x -a 'fp32 bf16 fp16'
complete -c uctrain -l partition_method -x -a 'parameters uniform type:transformer'
complete -c uctrain -l zero_stage -x -a '0 1 2 3'
complete -c uctrain -l qkv_order -x -a 'auto thirds by_head'
complete -c uctrain -l preset -x -a 'megatron-qkv-thirds megatron-qkv-by-head'
complete -c uctrain -l names -x -a 'hf megatron'
complete -c uctrain -l optimizer -x -a 'Adam AdamW'
complete -c uctrain -l lr_schedule -x -a 'constant warmup cosine'
complete -c uctrain -l device -x -a 'cpu cuda'
complete -c uctrain -l cuda_graph -x -a 'auto on off'
complete -c uctrain -l recompute -f -a 'blocks gelu norms gelu,norms'
complete -c uctrain -l checkpoint_dir -x -a '(__fish_complete_directories)'
complete -c uctrain -l log_dir -x -a '(__fish_complete_directories)'
complete -c uctrain -l data -r
complete -c uctrain -l data_samples -r
complete -c uctrain -l deepspeed_config -r
complete -c uctrain -l rules -r
