#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Start-up time and memory of the server: mount, first ls, first stat of a tensor, listing
# everything, unmount; anonymous memory while the whole tree is read; bytes read for all of that.
. "${BASH_SOURCE%/*}/lib.sh"
begin

first_ls() {
	ucfs "$source" "$mnt" && ls "$view" >/dev/null
}

peak=0
watch_memory() { # until process $1 has ended
	local now_kb

	while kill -0 "$1" 2>/dev/null; do
		now_kb=$(proc "$server" status RssAnon)
		[ "${now_kb:-0}" -le "$peak" ] || peak=$now_kb
		sleep 0.05
	done
}

warm
for ((i = 0; i < rounds; i++)); do
	timed mount_ls first_ls
	tensor=$(cd "$view/zero" && for d in *.weight; do echo "$d"; break; done)
	timed stat stat "$view/zero/$tensor/fp32.pt" >/dev/null
	timed ls_all ls -lR "$view" >/dev/null
	timed unmount unmount
done
cold
mount_as crc=exact
ls "$view" >/dev/null
cold_read=$(proc "$server" io read_bytes)
calls_read=$(proc "$server" io rchar)
ls -lR "$view" >/dev/null
list_read=$(proc "$server" io read_bytes)
anon_listed=$(proc "$server" status RssAnon)
find "$view" -type f -exec cat {} + >/dev/null &
watch_memory $!
unmount

header mount
row_of "mount and first ls" mount_ls ms
row_of "then stat of a tensor's file" stat ms "reads one shard's directory"
row_of "then ls -lR of the tree" ls_all ms
row_of unmount unmount ms
row "read(2) bytes up to the first ls" "$calls_read"
row "disk bytes up to the first ls, cold" "$cold_read"
row "disk bytes up to the end of ls -lR, cold" "$list_read"
row "anonymous memory after ls -lR (KiB)" "$anon_listed"
row "peak while all is read (KiB)" "$peak"
bar "mount and first ls (ms)" "$(median mount_ls)" "<" 50
bar "peak anonymous memory (KiB)" "$peak" "<" 32768
