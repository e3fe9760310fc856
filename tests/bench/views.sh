#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Hugging Face weights: files of the _hf and _fp32 views read by one reader, streamed and
# from the cache, against pread of the shards' bytes that they are made of, just before.
# A file converted to 16 bits is made of twice its bytes.
. "${BASH_SOURCE%/*}/lib.sh"
begin
compile readers

shards=("$source/$tag"/*optim_states.pt)
# pread_of BYTES: GB/s of reading BYTES of the shards.
pread_of() { "$work/readers" -n "$1" "${shards[@]}" | cut -d' ' -f1; }
# measure SERIES FACTOR FILE: the rate at which the source bytes of FILE (FACTOR
# times its size) are read, relative to pread.
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
	local -r file=$mnt/${tag}_$1/$2 name=$1.$3
	local how

	for how in no_cache cache_size=2G; do
		mount_as "hf_dtype=$3,$how,crc=zero"
		if [ "$how" = no_cache ]; then
			measure "$name.streamed" "$4" "$file"
		else # from the second time on, when its memory is there
			for _ in 1 2 3 4 5 6 7 8 9; do
				"$work/readers" "$file" >/dev/null
				sleep 0.2
			done
			measure "$name.found" 1 "$file"
		fi
		unmount
	done
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
report hf.fp32.streamed "model.safetensors, streamed" 0.45
report hf.bf16.streamed "model.safetensors, as bfloat16, streamed" 0.45
report fp32.fp32.streamed "pytorch_model.bin, streamed" 0.45
report hf.fp32.found "model.safetensors, found assembled" 1.5
report hf.bf16.found "model.safetensors, as bfloat16, found assembled" 1.5
report fp32.fp32.found "pytorch_model.bin, found assembled" 1.5
