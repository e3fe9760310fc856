#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# torch.load of a file of 154 MiB from a mount whose cache memory is warm, against the
# same from a copy on a disk, in one process; "first" is the first load of a fresh
# mount, which assembles the file.  UCFS_DEEPSPEED_PYTHON names a Python that has
# torch.
. "${BASH_SOURCE%/*}/lib.sh"
[ -n "${UCFS_DEEPSPEED_PYTHON:-}" ] || skip "UCFS_DEEPSPEED_PYTHON is not set"
"$UCFS_DEEPSPEED_PYTHON" -c 'import torch' >/dev/null 2>&1 ||
	skip "$UCFS_DEEPSPEED_PYTHON has no torch"
begin_own

mkdir "$work/large"
"$mkrun" "$work/large" 2 40370176
source=$work/large tag=global_step4
file=block.0001.weight/fp32.pt
ucfs "$source/$tag" "$mnt" -o crc=zero,no_cache
cp "$mnt/zero/$file" "$work/copy.pt"
unmount
for ((i = 0; i < rounds; i++)); do
	cat "$source/$tag"/zero_* "$work/copy.pt" >/dev/null
	ucfs "$source/$tag" "$mnt" -o crc=zero,cache_size=540M
	for ((k = 0; k < 20; k++)); do
		cat "$mnt/zero/block.0000.weight/exp_avg.pt" >/dev/null
		grep -q '^opens_cached 0' "$mnt/.ucfs/stats" || break
		sleep 0.2
	done
	read -r -a t < <("$UCFS_DEEPSPEED_PYTHON" \
		"${BASH_SOURCE%/*}/torch_load.py" "$work/copy.pt" "$mnt/zero/$file")
	for k in 0 1 2 3 4 5 6 7; do
		names=(local local.again mount mount.again
			mapped mapped.again mount.mapped mount.mapped.again)
		add "${names[k]}" "${t[k]}"
	done
	unmount
done

header torch_load
for k in local mount mapped mount.mapped; do
	row_of "$k, first" "$k" ms
	row_of "$k, again" "$k.again" ms
done
# against WHAT OURS LOCAL LIMIT
against() {
	bar "torch.load, 154 MiB, $1" "$(ratio "$(median "$3")" "$(median "$2")")" \
		">=" "$4" "$(median "$2") ms" "$(median "$3") ms"
}
against "plain, first" mount local 0.85
against "plain, again" mount.again local.again 1.0
against "mapped, first" mount.mapped mapped 0.16
against "mapped, again" mount.mapped.again mapped.again 0.85
