#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Time to the first tensor: mount and read one tensor, with the checkpoint in the page
# cache and without; beside it, one read of the whole checkpoint, the lower bound of
# any converter.
. "${BASH_SOURCE%/*}/lib.sh"
begin

# A weight matrix of a block: some megabytes, present in every model.
choose() {
	mount_as crc=exact
	file=$(find "$view/zero" -name fp32.pt -size +1M -size -64M | sort |
		sed -n 1p)
	bytes=$(stat -c %s "$file")
	unmount
}

one_tensor() { ucfs "$source" "$mnt" -o "$1" && cat "$file" >/dev/null; }

choose
for ((i = 0; i < rounds; i++)); do
	warm
	timed warm_cat warm
	timed warm_exact one_tensor crc=exact
	unmount
	timed warm_zero one_tensor crc=zero
	unmount
	cold
	timed cold one_tensor crc=exact
	unmount
	cold
	timed cold_cat warm
done
cold
mount_as crc=exact
cat "$file" >/dev/null
disk=$(proc "$server" io read_bytes)
unmount

header first_tensor
row "the tensor's file (bytes)" "$bytes"
row_of "mount and read it, warm" warm_exact ms
row_of "the same, crc=zero" warm_zero ms
row_of "the same, cold" cold ms
row "disk bytes read for it, cold" "$disk"
row_of "cat of the whole checkpoint, warm" warm_cat ms
row_of "the same, cold" cold_cat ms
