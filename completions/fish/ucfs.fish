# SPDX-License-Identifier: Apache-2.0
# fish completion for ucfs(1)

set -l options allow_other allow_root auto_unmount debug nonempty rmdir ro until= uid= gid= crc=exact crc=zero \
    stage=native stage=any rules= preset=megatron-qkv-thirds preset=megatron-qkv-by-head \
    hf_dtype=fp32 hf_dtype=bf16 hf_dtype=fp16 hf_config= hf_shard_size= model= head_dim= dcp_ranks= \
    dcp_style=fsdp2 dcp_style=flat dcp_style=titan dcp_style=titan_fused dcp_style=accelerate dcp_style=lightning dcp_style=fabric \
    readahead= deadline= manifest= ca_file= s3_endpoint= s3_region= s3_anonymous check log= view=universal view=hf view=fp32 view=dcp view=zero \
    ranks= replace follow_links

for program in ucfs mount.ucfs
    complete -c $program -f -a '(__fish_complete_directories)'
    complete -c $program -s f -l foreground -d 'Stay in the foreground'
    complete -c $program -s d -l debug -d 'Log every request'
    complete -c $program -s o -l options -x -d 'Mount options' -a "(__fish_append , $options)"
    complete -c $program -s V -l version -d 'Print the version'
    complete -c $program -s h -l help -d 'Print help'
end
