#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Files read through the mount in each of the three ways, and mapped, against pread of
# as many bytes of the shards by as many readers, just before and just after; each
# reader opens, reads and closes every file.  For assembled files the cache is warm
# and too small for all, so that each is assembled in each round; rows that say
# "found" have a cache that holds all.
#
# Also reported is the bound of the memory itself, if assembling cost nothing: files of
# a tmpfs of huge pages, read in turns with the others.
#
# A second ratio is of processor time, of server and readers together: it shows on a
# busy machine what one with idle processors would reach.
. "${BASH_SOURCE%/*}/lib.sh"
begin_own
compile readers
compile readfile

better() { printf '%s\n' "$@" | sort -g | tail -n 1; }

# own NAME PARAMETERS ELEMENTS: make a run of that name and its mount points.
own() {
	local part

	mkdir "$work/$1"
	"$mkrun" "$work/$1" "$2" "$3"
	for part in no_cache zero exact; do
		mkdir "$mnt/$1.$part"
	done
}
declare -A pids
serve() {
	ucfs "$work/${1%.*}/global_step4" "$mnt/$1" -f -o "$2" &
	pids[$1]=$!
	until mountpoint -q "$mnt/$1"; do
		kill -0 "${pids[$1]}" || exit 1
		sleep 0.01
	done
}
let_go() {
	umount "$mnt/$1" 2>/dev/null || fusermount3 -u "$mnt/$1"
	wait "${pids[$1]}"
}
# Processor seconds of a mount's server.
used() {
	awk -v hz="$(getconf CLK_TCK)" '{ print ($14 + $15) / hz }' \
		"/proc/${pids[$1]}/stat"
}
trap 'for m in "$mnt"/*; do mountpoint -q "$m" && umount -l "$m"; done; cleanup' EXIT

count() { awk -v n="$2" '$1 == n { print $2 }' "$mnt/$1/.ucfs/stats"; }
# files MOUNT FIRST LAST: files of some parameters of a mount.
files() {
	local i

	for ((i = $2; i <= $3; i++)); do
		printf "$mnt/$1/zero/block.%04d.weight/%s.pt\n" "$i" fp32 \
			"$i" exp_avg "$i" exp_avg_sq
	done
}
# Read until no open misses for lack of buffers and no new ones are allocated.
warm_up() {
	local before i

	for ((i = 0; i < 50; i++)); do
		before=$(count "$1" no_buffer),$(count "$1" cache_bytes)
		"$work/readers" "${@:2}" >/dev/null
		sleep 0.2
		[ "$(count "$1" no_buffer),$(count "$1" cache_bytes)" != \
			"$before" ] || return 0
	done
	echo "no memory became ready: the machine has no time for it" >&2
}
# against SERIES READERS MOUNT COMMAND...: a command's rate and processor time
# relative to reading as many bytes of the shards.
against() {
	local -r series=$1 t=$2 mount=$3
	local -a a b got
	local before after

	shift 3
	read -r -a a < <(raw "$t" "$mount")
	before=$(used "$mount")
	read -r -a got < <("$@")
	after=$(used "$mount")
	read -r -a b < <(raw "$t" "$mount")
	add "raw$t" "$(better "${a[0]}" "${b[0]}")"
	add "$series.raw" "$(better "${a[0]}" "${b[0]}")"
	add "$series.ours" "${got[0]}"
	add "$series" "$(ratio "${got[0]}" "$(better "${a[0]}" "${b[0]}")")"
	[ -z "${got[3]:-}" ] || add "$series.cpu" "$(awk -v r="${a[3]}" \
		-v q="${b[3]}" -v own="${got[3]}" -v s="$before" -v e="$after" \
		'BEGIN { printf "%.2f", (r + q) / 2 / (own + e - s) }')"
}
raw() {
	"$work/readers" -t "$1" -n "$bytes" "$work/${2%.*}"/global_step4/"$same"_*
}
same=zero # files of a checkpoint that have the same bytes

own 26 8 6815744
own 154 4 40370176
can=yes
serve 26.zero crc=zero
head -c 1 "$mnt/26.zero/mp_rank_00_model_states.pt" >/dev/null
[ "$(count 26.zero opens_passthrough)" -gt 0 ] || can=
let_go 26.zero

cat "$work"/*/global_step4/* >/dev/null
serve 26.no_cache crc=zero,no_cache
if [ -n "$can" ]; then
	serve 26.zero crc=zero,cache_size=220M
	serve 154.zero crc=zero,cache_size=540M
fi
mapfile -t streamed < <(files 26.no_cache 0 3)
mapfile -t z26 < <(files 26.zero 4 7)
mapfile -t z154 < <(files 154.zero 0 3)
mapfile -t e26 < <(files 26.exact 4 7)
mapfile -t warm26 < <(files 26.exact 0 3)
mkdir "$mnt/huge"
mount -t tmpfs -o huge=always,size=1g none "$mnt/huge" 2>/dev/null || can=
if [ -n "$can" ]; then
	for ((i = 0; i < 12; i++)); do
		cp "${streamed[i]}" "$mnt/huge/26.$i"
	done
	cp "$mnt/154.zero/zero/block.0000.weight/fp32.pt" "$mnt/huge/154"
fi
model=$mnt/26.no_cache/mp_rank_00_model_states.pt
small=$(stat -c %s "${streamed[0]}")
large=$(stat -c %s "$work"/154/global_step4/mp_rank_00_model_states.pt)

for ((i = 0; i < rounds; i++)); do
	cat "$work"/*/global_step4/* >/dev/null
	bytes=$((small * 12))
	against stream1 1 26.no_cache "$work/readers" "${streamed[@]}"
	# Two readers, each with half of the files, against one reader of the shards.
	against stream2 1 26.no_cache "$work/readfile" -t 2 "${streamed[@]}"
	against extents 1 26.no_cache "$work/readfile" -x "${streamed[@]}"
	if [ -n "$can" ]; then
		bytes=$(stat -c %s "$model") same=mp
		against identity 1 26.no_cache "$work/readers" "$model"
		same=zero
		bytes=$((small * 12))
		warm_up 26.zero "${z26[@]}"
		against a26 1 26.zero "$work/readers" "${z26[@]}"
		against a26x4 4 26.zero "$work/readers" -t 4 "${z26[@]}"
		against native26 1 26.zero "$work/readers" "$mnt"/huge/26.*
		against native26x4 4 26.zero "$work/readers" -t 4 \
			"$mnt"/huge/26.*
		bytes=$small
		"$work/readers" "${z26[0]}" >/dev/null
		against again26 1 26.zero "$work/readers" "${z26[0]}"
		serve 26.exact crc=exact,cache_size=220M
		warm_up 26.exact "${warm26[@]}"
		bytes=$((small * 12))
		against crc26 1 26.exact "$work/readers" "${e26[@]}"
		let_go 26.exact
		bytes=$((large * 12))
		warm_up 154.zero "${z154[@]}"
		against a154 1 154.zero "$work/readers" "${z154[@]}"
		bytes=$large
		"$work/readers" "${z154[0]}" >/dev/null
		against again154 1 154.zero "$work/readers" "${z154[0]}"
		against native154 1 154.zero "$work/readers" "$mnt/huge/154"
	fi
done

source=$work/26 tag=global_step4
header reading
for t in 1 4; do
	[ ! -f "$work/series.raw$t" ] ||
		row_of "pread of the shards, $t reader(s)" raw$t GB/s
done
report() {
	if [ -f "$work/series.$1" ]; then
		bar "$2" "$(median "$1")" ">=" "$3" \
			"$(median "$1.ours") GB/s" "$(median "$1.raw") GB/s"
		[ ! -f "$work/series.$1.cpu" ] ||
			row "  by processor time" "$(median "$1.cpu")" \
				"$(spread "$1.cpu")"
	else
		row "$2" "-" "" "no passthrough here"
	fi
}
report stream1 "streamed, one reader" 0.45
report stream2 "streamed, two readers / one raw" 0.9
report extents "by extents" 0.9
report identity "a file that is a shard" 0.95
# Not our results: the machine's.
ceiling() {
	[ ! -f "$work/series.$1" ] ||
		figure "$2" "$(median "$1.ours") GB/s" "$(median "$1.raw") GB/s" \
			"$(median "$1")"
}
ceiling native26 "12 times 26 MiB of huge pages, natively"
ceiling native26x4 "12 times 26 MiB, natively, four readers"
ceiling native154 "154 MiB of huge pages, natively"
report a26 "26 MiB, assembled" 1.0
report crc26 "26 MiB, assembled with checksums" 0.8
report a26x4 "26 MiB, four readers" 1.3
report again26 "26 MiB, found assembled" 1.5
report a154 "154 MiB, assembled" 1.0
report again154 "154 MiB, found assembled" 1.5
