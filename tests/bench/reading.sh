#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Files read through the mount, streamed, by their extents and passed through, against
# pread of as many bytes of the shards by as many readers, just before and just after;
# each reader opens, reads and closes every file.
#
# A second ratio is of processor time, of server and readers together: it shows on a
# busy machine what one with idle processors would reach.
. "${BASH_SOURCE%/*}/lib.sh"
begin_own
compile readers
compile readfile

better() { printf '%s\n' "$@" | sort -g | tail -n 1; }

# Print the server's processor seconds.
used() {
	awk -v hz="$(getconf CLK_TCK)" '{ print ($14 + $15) / hz }' \
		"/proc/$server/stat"
}
# against SERIES COMMAND...: append a command's rate and processor time, relative to those of
# reading the same number of bytes of the shards.
against() {
	local -r series=$1
	local -a a b got
	local before after

	shift
	read -r -a a < <(raw)
	before=$(used)
	read -r -a got < <("$@")
	after=$(used)
	read -r -a b < <(raw)
	add raw "$(better "${a[0]}" "${b[0]}")"
	add "$series.raw" "$(better "${a[0]}" "${b[0]}")"
	add "$series.ours" "${got[0]}"
	add "$series" "$(ratio "${got[0]}" "$(better "${a[0]}" "${b[0]}")")"
	[ -z "${got[3]:-}" ] || add "$series.cpu" "$(awk -v r="${a[3]}" \
		-v q="${b[3]}" -v own="${got[3]}" -v s="$before" -v e="$after" \
		'BEGIN { printf "%.2f", (r + q) / 2 / (own + e - s) }')"
}
raw() { "$work/readers" -n "$bytes" "$source/$tag/$same"_*; }

mkdir "$work/run"
"$mkrun" "$work/run" 8 6815744
source=$work/run tag=global_step4
mount_as crc=zero
view=$mnt/${tag}_universal
files=("$view"/zero/block.000[0-3].weight/{fp32,exp_avg,exp_avg_sq}.pt)
model=$view/mp_rank_00_model_states.pt
head -c 1 "$model" >/dev/null
can=$(awk '$1 == "opens_passthrough" && $2 { print "yes" }' "$mnt/.ucfs/stats")

for ((i = 0; i < rounds; i++)); do
	cat "$source/$tag"/* >/dev/null
	same=zero # a file of the checkpoint has the same bytes
	bytes=$(stat -c %s "${files[@]}" | awk '{ n += $1 } END { print n }')
	against stream1 "$work/readers" "${files[@]}"
	# Two readers read half of the files each, against one reader of the shards.
	against stream2 "$work/readfile" -t 2 "${files[@]}"
	against extents "$work/readfile" -x "${files[@]}"
	bytes=$(stat -c %s "$model") same=mp
	[ -z "$can" ] || against identity "$work/readers" "$model"
done

header reading
row_of "pread of the shards" raw GB/s
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
