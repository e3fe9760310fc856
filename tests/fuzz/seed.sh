#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Seeds for the fuzz targets, made of the checkpoints in tests/good:
#
#     tests/fuzz/seed.sh OUTDIR	writes OUTDIR/{zip,ptfile,pickle,plan,stage0}/
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:?usage: seed.sh OUTDIR}
size_max=12000

mkdir -p "$out/zip" "$out/ptfile" "$out/pickle" "$out/views" "$out/stage0"

# Extract the pickle of a .pt file.
pickle_of()
{
	unzip -p "$1" '*/data.pkl'
}

for model in "$top"/tests/good/z0_*/global_step*/mp_rank_00_model_states.pt; do
	case_name=${model#"$top"/tests/good/}
	{
		printf '\0'
		pickle_of "$model"
	} >"$out/stage0/${case_name%%/*}"
done

for dir in "$top"/tests/good/*/global_step*; do
	case_name=$(basename "$(dirname "$dir")")

	for f in "$dir"/*_0_*optim_states.pt "$dir"/mp_rank_00_model_states.pt \
		"$dir"/zero_pp_rank_0_mp_rank_00_model_states.pt; do
		if [ ! -f "$f" ]; then
			continue
		fi
		name=$case_name-$(basename "$f" .pt)
		if [ "$(head -c 2 "$f")" != PK ]; then
			cp "$f" "$out/ptfile/$name"
			continue
		fi
		pickle_of "$f" >"$out/pickle/$name"
		if [ "$(wc -c <"$f")" -le $size_max ]; then
			cp "$f" "$out/ptfile/$name"
			cp "$f" "$out/zip/$name"
		fi
	done

	# Flags as in fuzz_views.c: 1 ZeRO-3, 2 two ranks, 8 experts.
	set -- "$dir"/*zero_pp_rank_0_mp_rank_00_optim_states.pt
	shard0=$1
	set -- "$dir"/*zero_pp_rank_1_mp_rank_00_optim_states.pt
	shard1=$1
	expert=$dir/layer_0_expert_0_mp_rank_00_model_states.pt
	model=$dir/mp_rank_00_model_states.pt
	flags=0
	if [ ! -f "$model" ]; then
		model=$dir/zero_pp_rank_0_mp_rank_00_model_states.pt
		flags=1
	fi
	if [ ! -f "$model" ] || [ ! -f "$shard0" ] ||
		[ "$(head -c 2 "$shard0")" != PK ]; then
		continue
	fi
	if [ -f "$shard1" ]; then
		flags=$((flags + 2))
	fi
	if [ -f "$expert" ]; then
		flags=$((flags + 8))
	fi
	{
		# shellcheck disable=SC2059 # an octal escape
		printf "\\0$(printf %o $flags)"
		pickle_of "$model"
		if [ -f "$expert" ]; then
			printf '\376#cut#'
			pickle_of "$expert"
		fi
		printf '\376#cut#'
		pickle_of "$shard0"
		if [ -f "$shard1" ]; then
			printf '\376#cut#'
			pickle_of "$shard1"
		fi
	} >"$out/views/$case_name"
done
