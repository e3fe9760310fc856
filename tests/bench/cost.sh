#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Cost per byte: system calls, context switches and processor time of the server and of the
# reader, for each way of serving a file.  Counting calls needs `strace`.
. "${BASH_SOURCE%/*}/lib.sh"
begin_own
command -v strace >/dev/null || skip "no strace"
compile readers
compile usage

mkdir "$work/run"
"$mkrun" "$work/run" 8 6815744
source=$work/run tag=global_step4
switches() {
	cat /proc/"$server"/task/*/status |
		awk '/ctxt_switches/ { n += $2 } END { print n }'
}
ticks() { awk '{ print $14 + $15 }' "/proc/$server/stat"; }
per() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }

# cost NAME OPTIONS FILES...: measure after the files were read once.
cost() {
	local -r name=$1
	local calls bytes before at t
	local -a took
	local files=()

	ucfs "$source/$tag" "$mnt" -f -o "crc=zero,$2" &
	server=$!
	until mountpoint -q "$mnt"; do sleep 0.01; done
	for f in "${@:3}"; do files+=("$mnt/$f"); done
	for ((at = 0; at < 5; at++)); do
		"$work/readers" "${files[@]}" >/dev/null
		sleep 0.3
	done
	bytes=$(stat -c %s "${files[@]}" | awk '{ n += $1 } END { print n / 2^20 }')
	before=$(switches) t=$(ticks)
	read -r -a took < <("$work/usage" "$work/readers" "${files[@]}" 2>/dev/null)
	before=$(($(switches) - before)) t=$(($(ticks) - t))
	strace -f -c -p "$server" -o "$work/calls" 2>/dev/null &
	calls=$!
	sleep 0.5
	"$work/readers" "${files[@]}" >/dev/null
	kill -INT $calls
	wait $calls || true
	calls=$(awk '$NF == "total" { print $4 }' "$work/calls")
	figure "$name: context switches per MiB, server and reader" \
		"$(per "$before" "$bytes")" "$(per "${took[5]}" "$bytes")"
	figure "$name: processor ms per MiB, server and reader" \
		"$(per "$((t * 10))" "$bytes")" "$(per "${took[1]}" "$bytes")"
	figure "$name: system calls of the server per MiB" "$(per "$calls" "$bytes")"
	unmount
}

header cost
some=(zero/block.000{0,1,2,3}.weight/{fp32,exp_avg,exp_avg_sq}.pt)
cat "$source/$tag"/* >/dev/null
cost streamed ro "${some[@]}"
cost "a file that is a shard" ro mp_rank_00_model_states.pt
