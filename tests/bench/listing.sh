#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# ls -lR and find -size over 100,000 files of 25,000 parameters, in a fresh mount and
# again, against the same tree in a tmpfs; and ls -l of the one directory that holds
# all parameters.  A directory takes two requests, however few files it has: the first
# measurement shows their latency, the last the cost of an entry, and the minimal
# server (bare.c) the cost of any FUSE server.
. "${BASH_SOURCE%/*}/lib.sh"
begin_own
[ -w /dev/shm ] || skip "no /dev/shm to compare with"
dest=$(mktemp -d /dev/shm/ucfs-bench.XXXXXX) || exit 1

list() { ls -lR "$1" >/dev/null; }
wide() { ls -l "$1/zero" >/dev/null; }
sizes() { find "$1" -size +1M >/dev/null; }

mkdir "$work/many"
"$mkrun" "$work/many" 25000 4
source=$work/many tag=global_step4
ucfs "$source/$tag" "$mnt"
(cd "$mnt" && find . -type d -print0) | (cd "$dest" && xargs -0 mkdir -p)
(cd "$mnt" && find . -type f -print0) | (cd "$dest" && xargs -0 touch)
unmount
for ((i = 0; i < rounds; i++)); do
	timed tmpfs list "$dest"
	timed tmpfs_find sizes "$dest"
	timed tmpfs_wide wide "$dest"
	ucfs "$source/$tag" "$mnt"
	timed first_wide wide "$mnt"
	timed again_wide wide "$mnt"
	unmount
	ucfs "$source/$tag" "$mnt"
	timed first list "$mnt"
	timed again list "$mnt"
	timed again_find sizes "$mnt"
	unmount
	has_bare || continue
	mount_bare "$dest"
	timed bare list "$mnt"
	unmount
	mount_bare "$dest"
	timed bare_wide wide "$mnt"
	unmount
done
files=$(find "$dest" -type f | wc -l)
# Mount a run, whose other views are planned on first access.
mount_as crc=exact
add mounted "$(proc "$server" status RssAnon)"
list "$mnt/${tag}_universal"
add listed "$(proc "$server" status RssAnon)"
list "$mnt"
add all "$(proc "$server" status RssAnon)"
unmount

header listing
row files "$files"
row_of "ls -lR, tmpfs" tmpfs ms
row_of "ls -lR, fresh mount" first ms
row_of "ls -lR, again" again ms
if has_bare; then
	row_of "ls -lR, a bare server, fresh" bare ms
	row "  time / tmpfs" "$(ratio "$(median bare)" "$(median tmpfs)")"
	row_of "ls -l of 25000 directories, a bare server" bare_wide ms
	row "  time / tmpfs" "$(ratio "$(median bare_wide)" "$(median tmpfs_wide)")"
fi
row_of "find -size, tmpfs" tmpfs_find ms
row_of "find -size, again" again_find ms
# against WHAT OURS TMPFS LIMIT
against() {
	bar "$1, time / tmpfs" "$(ratio "$(median "$2")" "$(median "$3")")" "<" "$4" \
		"$(median "$2") ms" "$(median "$3") ms"
}
per_parameter() {
	figure "server's memory per parameter, $2 (bytes)" "$(awk \
		-v k="$(median "$1")" 'BEGIN { printf "%.0f", k * 1024 / 25000 }')"
}
per_parameter mounted "mounted"
per_parameter listed "after ls -lR of its tree"
per_parameter all "after ls -lR of all three views"
against "ls -l of 25000 directories, fresh mount" first_wide tmpfs_wide 1.2
against "ls -l of 25000 directories, again" again_wide tmpfs_wide 0.8
against "ls -lR of $files files, fresh mount" first tmpfs 1.2
against "ls -lR, again" again tmpfs 0.8
against "find -size, again" again_find tmpfs_find 1.2
