#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# cp -r of the universal tree from the mount, against cp -r of the same bytes from a
# converted copy on a disk, both in the page cache; with checksums (a fresh mount each
# round, so that each computes them) and without.
#
# Destinations are overwritten, not created: where a hypervisor reclaims free memory,
# new pages cost several times the copy.
. "${BASH_SOURCE%/*}/lib.sh"
begin
room "$work" 2 || skip "no room for a converted copy in $work"
room "$dest" 2 || skip "no room for copies in $dest"

copy() { cp -rT --no-preserve=mode "$1" "$dest/tree"; }

warm
mount_as crc=exact
cp -rT --no-preserve=mode "$view" "$work/converted"
unmount
copy "$work/converted"
for ((i = 0; i < rounds; i++)); do
	timed disk copy "$work/converted"
	for crc in exact zero; do
		mount_as "crc=$crc"
		timed "$crc" copy "$view"
		add "$crc.cpu" "$(awk -v hz="$(getconf CLK_TCK)" \
			'{ print ($14 + $15) * 1000 / hz }' "/proc/$server/stat")"
		unmount
	done
done

header copy
row "bytes" "$(du -sb "$work/converted" | cut -f1)" "" \
	"from $(stat -f -c %T "$work") to $(stat -f -c %T "$dest")"
row_of "cp -r of a converted copy" disk ms
row_of "cp -r of the mount, crc=exact" exact ms
row_of "  processor time of the server" exact.cpu ms
row_of "cp -r of the mount, crc=zero" zero ms
row_of "  processor time of the server" zero.cpu ms
bar "speed, mount / disk, crc=exact" \
	"$(ratio "$(median disk)" "$(median exact)")" ">=" 0.5
bar "speed, mount / disk, crc=zero" \
	"$(ratio "$(median disk)" "$(median zero)")" ">=" 0.5
