#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A mount needs no disk space: while the whole tree is listed and read, the server writes nothing
# to any disk, opens no file for writing and leaves none behind. (Cached files live in a tmpfs,
# that is in memory.)
. "${BASH_SOURCE%/*}/lib.sh"
begin

# Directories where a program would put temporary files.
home=$work/home
mkdir "$home"
export HOME=$home TMPDIR=$home XDG_CACHE_HOME=$home XDG_RUNTIME_DIR=$home
touch "$work/stamp"
mount_as crc=exact
ls -lR "$view" >/dev/null
find "$view" -type f -exec cat {} + >/dev/null
written=$(proc "$server" io write_bytes)
# List regular files open for writing, except our own output.
writable=0
for fd in /proc/"$server"/fd/*; do
	n=${fd##*/}
	if [ -f "$fd" ] && [ "$n" -gt 2 ] &&
		[ "$(stat -L -f -c %T "$fd")" != tmpfs ]; then
		flags=$(proc "$server" "fdinfo/$n" flags)
		[ "$((8#$flags & 3))" = 0 ] || writable=$((writable + 1))
	fi
done
unmount
left=$(find "$home" -mindepth 1 | wc -l)
changed=$(find "$source" -newer "$work/stamp" | wc -l)

header scratch
row "bytes written to disks" "$written"
row "files open for writing" "$writable"
row "files left in HOME, TMPDIR, cache" "$left"
row "files changed in the checkpoint" "$changed"
[ "$written$writable$left$changed" = 0000 ] || exit 1
