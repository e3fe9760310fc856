#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# How time grows with ranks and with parameters, on tiny shards made by mkrun: processor
# seconds of `ucckpt check`, of a mount and its first stat, and of reading the parameters
# of a mount.  Each row ends with the slope from the previous row: 1 means proportional to
# the number that grows.  Then the same for two sizes with 1024 descriptors, fewer than
# shards.  Finally, seconds until a mount and until its first parameter on storage that
# takes 20 ms per request, and the number of requests for a parameter that one rank holds.
#
# UCFS_BENCH_SCALE	sizes: PARAMETERS:DP:STAGE ... in which one number grows
. "${BASH_SOURCE%/*}/lib.sh"

ranks='64:64:3 64:256:3 64:1024:3 64:4096:3 64:16384:3'
parameters='1000:4:1 10000:4:1 100000:4:1 1000000:4:1'
ELEMENTS=64
READ_MAX=100 # number of parameters that are read

begin_own /dev/shm
source=$work/run
ulimit -n "$(ulimit -H -n)"

# Set $spent to the processor seconds of a command.
spend() {
	local TIMEFORMAT='%U %S'

	spent=$({ time "$@" >"$work/out" 2>&1; } 2>&1) ||
		{ cat "$work/out"; exit 1; }
	spent=$(awk '{ print $1 + $2 }' <<<"$spent")
}

# Print the server's processor seconds so far.
server_seconds() {
	awk -v hz="$(getconf CLK_TCK)" '{ print ($14 + $15) / hz }' \
		"/proc/$server/stat"
}

read_parameters() {
	local p n=0

	for p in "$mnt"/global_step4_universal/zero/block.*; do
		cat "$p"/*.pt >/dev/null
		n=$((n + 1))
		[ $n -lt $READ_MAX ] || break
	done
}

measure() {
	local n dp stage i

	IFS=: read -r n dp stage <<<"$1"
	rm -rf "${work:?}/run"
	mkdir "$source"
	"$mkrun" "$source" "$n" $((dp > ELEMENTS ? dp * 4 : ELEMENTS)) "$dp" 1 "$stage"
	spend ucckpt check "$source"
	check=$spent
	ucfs -f "$source" "$mnt" 2>"$work/log" &
	server=$!
	for ((i = 0; i < 600; i++)); do
		mountpoint -q "$mnt" && break
		sleep 0.1
	done
	[ -s "$mnt/global_step4_universal/zero/block.0000.weight/fp32.pt" ]
	stat=$(server_seconds)
	read_parameters
	all=$(server_seconds)
	unmount
}

# grow NAME COLUMN SIZE...: print a table; COLUMN is the number that grows.
grow() {
	local name=$1 column=$2 size at before='' row

	shift 2
	printf '%s: processor seconds, and slopes\n' "$name"
	for size in "$@"; do
		measure "$size"
		at=$(cut -d: -f"$column" <<<"$size")
		row=$(awk -v at="$at" -v check="$check" -v stat="$stat" \
			-v all="$all" -v before="$before" '
			function slope(now, was) {
				if (!n || now <= 0 || was <= 0) return "-"
				return sprintf("%.2f", log(now / was) / log(at / b[1]))
			}
			BEGIN {
				n = split(before, b, " ")
				printf "%9d  check %7.2f (%s)  first stat %6.2f (%s)" \
					"  read %7.2f (%s)\n", at, check,
					slope(check, b[2]), stat, slope(stat, b[3]),
					all - stat, slope(all - stat, b[4])
			}')
		printf '%s\n' "$row"
		before="$at $check $stat $(awk "BEGIN { print $all - $stat }")"
	done
}

# far RANKS BAR: measure on slow storage; all ranks hold a part of the parameter.
far() {
	local slow=$work/slow begun mounted

	mkdir -p "$source" "$slow"
	"$mkrun" "$source" 64 $(($1 * 4)) "$1" 1 3
	"${top_builddir:-.}/tests/bench/slowfs" -d 20000 -n 64 "$source" "$slow"
	begun=$EPOCHREALTIME
	ucfs "$slow" "$mnt"
	mounted=$EPOCHREALTIME
	cat "$mnt/global_step4_universal/zero/block.0000.weight/fp32.pt" >/dev/null
	awk -v ranks="$1" -v a="$begun" -v b="$mounted" -v c="$EPOCHREALTIME" 'BEGIN {
		printf "%9d ranks at 20 ms: mount %.2f s, first parameter %.2f s\n",
			ranks, b - a, c - b }'
	bar "first parameter of $1 ranks at 20 ms (s)" \
		"$(awk "BEGIN { print $EPOCHREALTIME - $mounted }")" "<" "$2"
	unmount
	mnt=$slow unmount
	rm -rf "${work:?}/run"
}

# few_descriptors SIZE: set $check and $read.
few_descriptors() {
	local -r few=1024

	read -r check read < <(ulimit -n $few
		measure "$1" >&2
		awk "BEGIN { print $check, $all - $stat }")
}

# requests RANKS: print the number of requests until a mount exists and a parameter of the first
# rank is read.
requests() {
	local slow=$work/slow

	mkdir -p "$source" "$slow"
	"$mkrun" "$source" 1000 64 "$1" 1 1
	"${top_builddir:-.}/tests/bench/slowfs" -d 0 "$source" "$slow"
	ucfs "$slow" "$mnt"
	cat "$mnt/global_step4_universal/zero/block.0000.weight/fp32.pt" >/dev/null
	cat "$slow/.slowfs"
	unmount
	mnt=$slow unmount
	rm -rf "${work:?}/run"
}

if [ -n "${UCFS_BENCH_SCALE-}" ]; then
	# shellcheck disable=SC2086 # a list of sizes
	grow "sizes" 2 $UCFS_BENCH_SCALE
else
	# shellcheck disable=SC2086
	grow "data-parallel ranks, stage 3, 64 parameters" 2 $ranks
	# shellcheck disable=SC2086
	grow "parameters, stage 1, 4 ranks" 1 $parameters
	few_descriptors 64:1024:3
	bar "1024 ranks, 1024 descriptors: 64 parameters (CPU s)" "$read" "<" 1
	few_descriptors 64:4096:3
	bar "4096 ranks, 1024 descriptors: check (CPU s)" "$check" "<" 5
	figure "4096 ranks, 1024 descriptors: 64 parameters (CPU s)" "$read"
	rm -rf "${work:?}/run"
	far 256 2
	requests 256
fi
