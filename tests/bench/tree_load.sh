#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A loader's view: torch.load all tensors of the universal tree, once, in one process.  From a
# fresh mount, including the time to mount, against a converted tree on a disk, both in the page
# cache; and the same from the minimal server (bare.c).  Rounds start with different ones: the
# first pays for memory freed in the meantime.
. "${BASH_SOURCE%/*}/lib.sh"
needs_python torch
begin
room "$work" 2 || skip "no room for a converted tree in $work"
load() { "$UCFS_DEEPSPEED_PYTHON" "${BASH_SOURCE%/*}/tree_load.py" "$@"; }

mounts=(crc=exact crc=zero)
variants=(disk "${mounts[@]}")
! has_bare || variants+=(bare)

load_from() {
	case $1 in
	disk) load "$work/converted/zero" ;;
	bare) load "$mnt/zero" "$bare" "$work/converted" "$mnt" ;;
	*) load "$view/zero" ucfs "$source" "$mnt" -o "$1" ;;
	esac
}

warm
ucckpt convert "$source/$tag" "$work/converted" >/dev/null
sync
for ((i = 0; i < rounds; i++)); do
	cat "$source/$tag"/*.pt >/dev/null
	find "$work/converted" -type f -exec cat {} + >/dev/null
	for ((k = 0; k < ${#variants[@]}; k++)); do
		how=${variants[(i + k) % ${#variants[@]}]}
		add "$how" "$(load_from "$how")"
		unmount
	done
done

header tree_load
row_of "from the disk" disk ms
if has_bare; then
	row_of "from a bare server" bare ms
	row "  disk's to that" "$(ratio "$(median disk)" "$(median bare)")"
fi
for how in "${mounts[@]}"; do
	row_of "mount, -o $how" "$how" ms
	bar "torch.load of the whole tree, mount included, -o $how" \
		"$(ratio "$(median disk)" "$(median "$how")")" ">=" 0.45 \
		"$(median "$how") ms" "$(median disk) ms"
done
