# SPDX-License-Identifier: Apache-2.0
# fish completion for ucplot(1)

complete -c ucplot -l output -r -d 'Where the plot goes'
complete -c ucplot -l png
complete -c ucplot -l csv
complete -c ucplot -l tag -x -a 'train/loss valid/loss train/lr train/grad_norm
    train/loss_scale speed/tokens_per_second speed/memory'
complete -c ucplot -l help -d 'Print help'
complete -c ucplot -l version -d 'Print the version'
