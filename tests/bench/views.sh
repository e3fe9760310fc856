#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Hugging Face weights: one reader reads files of the _hf and _fp32 views, against pread of
# their source bytes just before.  A file in 16 bits has twice as many source bytes.
. "${BASH_SOURCE%/*}/lib.sh"
begin
compile readers

shards=("$source/$tag"/*optim_states.pt)
# pread_of BYTES: print the GB/s of reading BYTES of the shards.
pread_of() { "$work/readers" -n "$1" "${shards[@]}" | cut -d' ' -f1; }
# measure SERIES FACTOR FILE: append the rate at which the source bytes of FILE (FACTOR times its
# size) are read, relative to pread.
measure() {
	local -r size=$(stat -c %s "$3")
	local -r raw=$(pread_of $((size * $2)))
	local -r got=$("$work/readers" "$3" | cut -d' ' -f1)

	add "$1.raw" "$raw"
	add "$1.ours" "$(awk -v r="$got" -v f="$2" 'BEGIN { print r * f }')"
	add "$1" "$(awk -v r="$got" -v f="$2" -v w="$raw" \
		'BEGIN { printf "%.2f", r * f / w }')"
}
# one VIEW FILE DTYPE FACTOR
one() {
	mount_as "hf_dtype=$3,crc=zero"
	measure "$1.$3" "$4" "$mnt/${tag}_$1/$2"
	unmount
}

warm
for ((i = 0; i < rounds; i++)); do
	one hf model.safetensors fp32 1
	one hf model.safetensors bf16 2
	one fp32 pytorch_model.bin fp32 1
done

header views
report() {
	bar "$2" "$(median "$1")" ">=" "$3" "$(median "$1.ours") GB/s" \
		"$(median "$1.raw") GB/s"
}
report hf.fp32 "model.safetensors" 0.45
report hf.bf16 "model.safetensors, as bfloat16" 0.45
report fp32.fp32 "pytorch_model.bin" 0.45
