#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Packed sizes of trained checkpoints: uctrain trains GPT-2 of 3.2 M parameters on the
# text of this repository, bytes as tokens.  Every pack is unpacked and compared.
#
# UCFS_PACK_STEPS	steps of training (150)
. "${BASH_SOURCE%/*}/lib.sh"
command -v uctrain >/dev/null || skip "uctrain is not built"
command -v mpirun >/dev/null || skip "no mpirun"
begin_work
tmp=$work
top_srcdir=${top_srcdir:-.}
# shellcheck source=tests/cases/mpi.sh
. "$top_srcdir/tests/cases/mpi.sh"

steps=${UCFS_PACK_STEPS:-150}
find "$top_srcdir" -name build\* -prune -o \( -name '*.md' -o -name '*.1' -o -name '*.[ch]' \) \
	-type f -print0 | sort -z | xargs -0 cat >"$work/text"

# packs NAME DTYPE STAGE LIMIT
packs() {
	local -r tag=$work/$1/global_step$steps
	local was is

	TRAIN_SECONDS=3600 on_ranks 2 uctrain --n_layer 4 --n_head 4 --n_embd 256 --vocab_size 256 \
		--n_positions 64 --seq_length 64 --train_batch_size 8 \
		--train_micro_batch_size_per_gpu 4 --data "$work/text" --steps "$steps" \
		--dtype "$2" --zero_stage "$3" --checkpoint_dir "$work/$1" \
		--log_dir "$work/logs/$1" >"$work/$1.log" 2>&1 || { cat "$work/$1.log"; exit 1; }
	ucckpt pack "$tag" >/dev/null
	ucckpt unpack "$tag.ucpack" -o "$work/back" >/dev/null
	diff -r "$tag" "$work/back" || exit 1
	rm -rf "$work/back"
	was=$(cat "$tag"/* | wc -c)
	is=$(stat -c %s "$tag.ucpack")
	bar "$2, stage $3: packed, % of the original" \
		"$(awk -v a="$is" -v b="$was" 'BEGIN { printf "%.1f", 100 * a / b }')" \
		"<" "$4" "$is" "$was"
}

printf 'packsizes: %d steps, loss of each run in its log\n' "$steps"
packs bf16_1 bf16 1 72.0001
packs bf16_2 bf16 2 72.0001
packs fp32_2 fp32 2 63.0001
packs bf16_3 bf16 3 84.0001
