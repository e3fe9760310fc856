#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The order of the rooms, by includes and by calls.
#
# ckpt/, fs/, gpu/ and cmd/ are columns: the others stand on ckpt/ and know nothing
# of each other.  A column's local.mk includes its rooms in the order in which
# they may use each other, and a room's local.mk lists its files in that order:
#
#   - a file includes only headers that are listed above it;
#   - an object calls only what its own room or one above it defines, also
#     through a declaration that is no header's;
#   - fs/ and cmd/ use the library by its headers, and what stands on nothing of ours;
#   - the headers of FUSE belong to fs/, those of CUDA and MPI to gpu/.
#
# An order leaves no circle.
set -u
cd "${top_srcdir:-$(dirname "$0")/../..}" || exit 1
build=${top_builddir:-build}

# Print "ckpt/base", "ckpt/remote", ... in order; cmd/ is one room.
rooms=$(for column in ckpt fs gpu; do
	sed -n "s|^include %D%/\([a-z]*\)/local.mk|$column/\1|p" $column/local.mk
done
echo cmd)

# List every file in order: first those of the rooms, then those of the top folders.
# shellcheck disable=SC2086 # our own names: no blanks
listed=$(
	echo ckpt/uckpt.h
	for room in $rooms; do
		awk -v room="$room/" '
		!/^[ \t]*(gpu|ckpt)\// {
			line = $0
			while (match(line, /%D%\/[A-Za-z0-9_]+\.(cuh|cu|c|h)/)) {
				print room substr(line, RSTART + 4, RLENGTH - 4)
				line = substr(line, RSTART + RLENGTH)
			}
		}' "$room/local.mk"
	done
	printf '%s\n' fs/detach.h fs/detach.c fs/keeper.h fs/keeper.c fs/mountpoint.h fs/mountpoint.c \
		fs/options.h fs/options_table.c fs/options.c \
		fs/main.c gpu/main.c
)

bad=0

# Check that every source is listed.
for f in $(find ckpt fs gpu cmd -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'); do
	if ! printf '%s\n' "$listed" | grep -qxF "$f"; then
		echo "$f: not listed in $(dirname "$f")/local.mk"
		bad=$((bad + 1))
	fi
done

# shellcheck disable=SC2086
printf '%s\n' "$listed" | awk '
function complain(text)
{
	printf "%s:%d: %s\n", FILENAME, FNR, text
	bad++
}

BEGIN {
	public = "^(fs/|cmd/|ckpt/uckpt.h|ckpt/vfile/ucfs_ioctl.h|ckpt/base/)"
}

FILENAME == "-" {
	if (!($0 in place))
		place[$0] = ++places
	next
}

FNR == 1 {
	split(FILENAME, part, "/")
	column = part[1]
	checked++
}

!/^[ \t]*#[ \t]*include/ { next }

/#[ \t]*include[ \t]*"/ {
	split($0, part, "\"")
	header = part[2]
	if (header !~ /^(ckpt|fs|gpu|cmd)\//)
		complain("\"" header "\": write the directory too")
	else if (index(header, "ckpt/") != 1 && index(header, column "/") != 1)
		complain(column "/ may not include \"" header "\"")
	else if ((column == "fs" || column == "cmd") && header !~ public)
		complain(column "/ may not include \"" header "\"")
	else if (!(header in place))
		complain("\"" header "\" is not listed in any local.mk")
	else if (FILENAME in place && place[header] > place[FILENAME])
		complain("\"" header "\" is listed below it")
	next
}

{
	header = $0
	sub(/^[^<]*</, "", header)
	sub(/>.*/, "", header)
	if (column != "fs" && header ~ /^fuse/)
		complain(column "/ may not include <" header ">")
	if (column != "gpu" && header ~ /^(cuda|cublas|curand|nccl|mpi)/)
		complain(column "/ may not include <" header ">")
}

END {
	printf "includes: %d files looked at, %d complaints\n", checked, bad
	exit bad || !checked
}
' - $listed || bad=$((bad + 1))

# Check calls between rooms.
objects=$(cd "$build" && for room in $rooms; do
	for o in "$room"/*.o; do
		[ -f "$o" ] && echo "$o"
	done
done)
if [ -z "$objects" ]; then
	echo "$build: no objects to look at"
	exit 1
fi

# shellcheck disable=SC2086
(
	printf 'room %s\n' $rooms
	cd "$build" && nm -A -P -g $objects
) | awk '
$1 == "room" {
	place[$2] = ++places
	next
}

{
	object = $1
	sub(/:$/, "", object)
	sub(/\[.*$/, "", object)
	room = object
	sub(/\/[^\/]*$/, "", room)
	if (!seen[object]++)
		objects++
}

$3 == "U" {
	uses[object, $2] = room
	next
}

$3 ~ /^[TDBRV]$/ && (!($2 in home) || place[room] < place[home[$2]]) {
	home[$2] = room
}

END {
	for (use in uses) {
		split(use, part, SUBSEP)
		to = home[part[2]]
		if (to != "" && place[to] > place[uses[use]]) {
			printf "%s calls %s of %s, a room below its own\n",
				part[1], part[2], to
			bad++
		}
	}
	printf "calls: %d objects looked at, %d complaints\n", objects, bad
	exit bad || !objects
}' || bad=$((bad + 1))

[ "$bad" -eq 0 ]
