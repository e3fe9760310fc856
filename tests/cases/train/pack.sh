#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# uctrain resumes from a packed tag as from its directory, bit for bit: from the shards, and from
# a mount of the pack.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
sanitized_by train/load mount/pack
require_train
require_fuse

# --dtype and --zero_stage decide which weights a pack need not store.
for kind in "fp32 2" "bf16 1" "bf16 3"; do
	read -r dtype stage <<<"$kind"
	name=${dtype}z$stage
	f=("${tiny[@]}" --train_batch_size 8 --deterministic --zero_stage "$stage"
		--dtype "$dtype")

	train 2 "$name" "${f[@]}" --steps 8 --checkpoint_dir "$tmp/$name" --checkpoint_interval 4
	cp -a "$tmp/$name/global_step4" "$tmp/tag"
	for step in 4 8; do
		check "$name: packed, step $step" ucckpt pack "$tmp/$name/global_step$step"
		rm -r "$tmp/$name/global_step$step"
	done
	train 2 "$name-packed" "${f[@]}" --steps 8 --resume="$tmp/$name" --checkpoint_tag global_step4
	check "$name: from the pack" within 0 "$(apart "$name" "$name-packed" 5)"
	mount_fg "$tmp/$name" || break
	train 2 "$name-mount" "${f[@]}" --steps 8 --resume --universal_checkpoint \
		--checkpoint_dir "$tmp/mnt" --checkpoint_tag global_step4_universal
	unmount
	check "$name: from a mount of the pack" within 0 "$(apart "$name" "$name-mount" 5)"
	# Use the tag that `latest` names.
	train 2 "$name-latest" "${f[@]}" --steps 9 --resume="$tmp/$name"
	check "$name: latest" grep -q 'at step 8' "$tmp/$name-latest.log"
	check "$name: unpacked" ucckpt unpack "$tmp/$name/global_step4.ucpack"
	check "$name: as it was" diff -r "$tmp/tag" "$tmp/$name/global_step4"
	rm -rf "$tmp/tag"
done

finish
