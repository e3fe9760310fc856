#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# DeepSpeed resumes on another number of ranks from TAG_dpN: its time, and the bytes
# of optimizer shards that all ranks read together, against the universal view of the
# same mount and against a checkpoint that DeepSpeed saved on N ranks.  Each load has a
# mount of its own, so that none finds pages that another one left in the cache.
# UCFS_DEEPSPEED_PYTHON names a Python that has DeepSpeed and transformers.
#
# UCFS_BENCH_STAGE	ZeRO stage of the run (1)
# UCFS_BENCH_RANKS	numbers of ranks ("2 8")
. "${BASH_SOURCE%/*}/lib.sh"
needs_python deepspeed transformers
begin
room "$work" 2 || skip "no room for a checkpoint in $work"
stage=${UCFS_BENCH_STAGE:-1}

# bytes DIRECTORY PATTERN: print the bytes of the matching files.
bytes() {
	find "$1" -name "$2" -printf '%s\n' |
		awk '{ sum += $1 } END { printf "%.0f", sum }'
}

# ask load|save RUN TAG: set $ms, and $read, the bytes that all ranks read.
ask() {
	echo "$@" >&"${engine[1]}"
	read -r ms read <&"${engine[0]}" || { cat "$work/log"; exit 1; }
}

# load NAME TAG: load it from a new mount.
load() {
	mount_as crc=exact
	ask load "$mnt" "$2"
	unmount
	add "$1" "$ms"
	add "$1.read" "$read"
}
native() {
	ask load "$work/run" "$tag"
	add "native$n" "$ms"
	add "native$n.read" "$read"
}

# Bytes that ranks read besides shards: the module, which stages 1 and 2 read repeatedly.
other_bytes() {
	echo $(($(median "native$n.read") - $(bytes "$work/run/$tag" '*optim_states.pt')))
}

compare() {
	local -r saved=$(bytes "$source/$tag" '*optim_states.pt')
	local -r shards=$(($(median "dp$n.read") - $(other_bytes)))
	local limit=1

	[ "$stage" != 3 ] || limit=0.6
	row_of "$n ranks: DeepSpeed loads ${tag}_dp$n" "dp$n" ms
	row_of "$n ranks: DeepSpeed loads ${tag}_universal" "universal$n" ms
	row_of "$n ranks: DeepSpeed loads its own of $n ranks" "native$n" ms
	bar "$n ranks: shards' bytes read / saved" "$(ratio "$shards" "$saved")" \
		"<" 1.05 "$shards" "$saved"
	figure "$n ranks: bytes read, TAG_dp$n, TAG_universal" "$(median "dp$n.read")" \
		"$(median "universal$n.read")"
	bar "$n ranks: TAG_dp$n / TAG_universal (ms)" \
		"$(ratio "$(median "dp$n")" "$(median "universal$n")")" \
		"<" "$limit" "$(median "dp$n")" "$(median "universal$n")"
	bar "$n ranks: TAG_dp$n / DeepSpeed's own (ms)" \
		"$(ratio "$(median "dp$n")" "$(median "native$n")")" \
		"<" 1.25 "$(median "dp$n")" "$(median "native$n")"
}

warm
header recut
for n in ${UCFS_BENCH_RANKS:-2 8}; do
	coproc engine {
		exec "$UCFS_DEEPSPEED_PYTHON" "${BASH_SOURCE%/*}/resume.py" \
			"$stage" "$n" 2>"$work/log"
	}
	pid=$engine_PID
	mount_as crc=exact
	ask load "$mnt" "${tag}_dp$n"
	unmount
	ask save "$work/run" "$tag"
	for ((i = 0; i < rounds; i++)); do
		load "dp$n" "${tag}_dp$n"
		load "universal$n" "${tag}_universal"
		native
	done
	exec {engine[1]}>&-
	wait "$pid" || { cat "$work/log"; exit 1; }
	compare
	rm -rf "$work/run"
done
