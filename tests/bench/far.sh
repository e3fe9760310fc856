#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Slow storage: ucckpt convert, cp -r and torch.load of the whole tree by one process,
# against 64 readers that share the shards in pieces of 1 MiB, in turns.
#
# The store is slowfs: each request takes a delay, 64 may be pending, and the bytes pass
# through its memory, as in any network client.  The readers keep all bytes in new memory
# (pieces -k), as any user of the bytes must; the rate of readers that discard them is
# printed, too.  All read the same page cache.  convert and cp write to memory if /dev/shm
# has room, since a disk would limit them.  The time of torch.load is from the first open
# to the last tensor, without starting Python or importing DeepSpeed, whose classes the
# files name and which takes 0.75 s; uctrain, which resumes from the mount on two ranks,
# measures its own time.  Before each side `settle` writes to as much memory as all of them
# take, so that none pays for pages that the host of a virtual machine took away.
#
# UCFS_DEEPSPEED_PYTHON	a Python that has torch and DeepSpeed (python3)
# UCFS_BENCH_FAR	delays of a request in microseconds; with a "c" behind it the
#			kernel caches what was read and reads ahead, in requests of
#			128 KiB at most ("2000 20000 2000c 20000c")
. "${BASH_SOURCE%/*}/lib.sh"
begin
slowfs=${top_builddir:-.}/tests/bench/slowfs
[ -x "$slowfs" ] || skip "tests/bench/slowfs is not built"
python=${UCFS_DEEPSPEED_PYTHON:-python3}
room "$dest" 2 || skip "no room for copies in $dest"
[ "$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)" -gt \
	$(($(du -sk "$source/$tag" | cut -f1) * 3)) ] ||
	skip "no memory for three times the shards"
compile pieces
compile settle
stores=${UCFS_BENCH_FAR:-2000 20000 2000c 20000c}
near=$source far=$work/far
mkdir "$far"
# It needs the copy, and as much again for the process that makes or loads it.
settle=("$work/settle" $(($(du -sm "$source/$tag" | cut -f1) * 5 / 2)))

be_far() {
	local options=(-d "${store%c}" -l "$work/requests.$1.$store")

	[ "$store" = "${store%c}" ] || options+=(-c)
	"$slowfs" "${options[@]}" "$near" "$far"
	source=$far
}
be_near() {
	source=$near
	for _ in $(seq 50); do
		umount "$far" 2>/dev/null || fusermount3 -u "$far" 2>/dev/null || true
		mountpoint -q "$far" || return 0
		sleep 0.1
	done
}
trap 'unmount; be_near; cleanup' EXIT
# count WAY: append the store's counters; $bytes were written or loaded.
count() {
	add "$1.$store.read" "$(awk -v n="$bytes" '$1 == "bytes" { printf "%.3f", $2 / n }' \
		"$far/.slowfs")"
	add "$1.$store.most" "$(awk '$1 == "most" { print $2 }' "$far/.slowfs")"
}
# rate WAY MICROSECONDS: append MB/s.
rate() {
	add "$1.$store" "$(awk -v us="$2" -v n="$bytes" 'BEGIN { printf "%.0f", n / us }')"
}
size_of_tree() { bytes=$(du -sb "$dest/tree" | cut -f1); }
by_convert() {
	local t

	"${settle[@]}"
	t=$(now)
	ucckpt convert "$far/$tag" "$dest/tree" >/dev/null
	us=$(($(now) - t))
	size_of_tree
}
by_copy() {
	local t

	mount_as crc=exact
	"${settle[@]}"
	t=$(now)
	cp -r "$view" "$dest/tree"
	us=$(($(now) - t))
	size_of_tree
}
by_torch() {
	mount_as crc=exact
	# Importing torch may print more.
	read -r bytes us < <("$python" "${BASH_SOURCE%/*}/far_load.py" "$view/zero" "${settle[@]}" |
		tail -n 1)
}
by_train() {
	mount_as crc=exact
	"${settle[@]}"
	# "...: all ranks read 1493.3 MB of tensors, ... in 0.52 s"
	read -r bytes us < <(resume | awk '/: all ranks read / {
		for (i = 1; i < NF; i++) {
			if ($i == "read") mb = $(i + 1)
			if ($i == "in") s = $(i + 1) }
		printf("%.0f %.0f\n", mb * 1e6, s * 1e6) }')
}
resume() {
	on_ranks 2 uctrain --model gpt2 --seq_length 16 --train_batch_size 2 \
		--steps "${tag#global_step}" --resume="$mnt" --universal_checkpoint \
		--checkpoint_tag "${tag}_universal" --log_dir "$work/logs" 2>&1
}
can_train() {
	command -v uctrain >/dev/null && command -v mpirun >/dev/null || return
	mount_as crc=exact
	resume >"$work/train.log" || sed 's/^/no row of uctrain: /' "$work/train.log"
	unmount
	grep -q ': all ranks read ' "$work/train.log"
}
# readers WAY OPTION...
readers() {
	local -r way=$1 result=$work/pieces.result

	shift
	be_far "$way"
	"${settle[@]}"
	"$work/pieces" "$@" "$far/$tag"/* >"$result"
	add "$way.$store" "$(cut -d' ' -f1 "$result")"
	be_near
}
ways=(convert copy)
! "$python" -c 'import deepspeed, torch' >/dev/null 2>&1 || ways+=(torch)
tmp=$work top_srcdir=${top_srcdir:-.}
# shellcheck source=tests/cases/mpi.sh
. "${BASH_SOURCE%/*}/../cases/mpi.sh"
! can_train || ways+=(train)

warm
for ((i = 0; i < rounds; i++)); do
	for store in $stores; do
		readers thrown
		readers readers -k
		for way in "${ways[@]}"; do
			be_far "$way"
			"by_$way"
			rate "$way" "$us"
			count "$way"
			unmount
			be_near
			rm -rf "$dest/tree"
		done
	done
done

# Print the pending requests in the last round: the mean of each tenth.
under_way() {
	awk '$2 || began { began = 1; v[++n] = $2 }
		$2 { last = n }
		END { for (i = 1; i <= 10; i++) {
			s = k = 0
			for (j = int((i - 1) * last / 10) + 1; j <= i * last / 10; j++) {
				s += v[j]; k++ }
			printf("%s%.0f", (i > 1 ? " " : ""), (k ? s / k : 0)) } }' \
		"$work/requests.$1.$store"
}
# limit WAY: print the required part of the readers' rate.
limit() {
	if [ "${store%c}" -ge 10000 ]; then
		echo 0.4
	elif [ "$1" = convert ]; then
		echo 0.7
	else
		echo 0.5
	fi
}
header "far, copies on $(stat -f -c %T "$dest")"
for store in $stores; do
	what=${store%c}
	[ "$store" = "$what" ] || what="$what cached"
	row_of "$what us: 64 readers of 1 MiB" "readers.$store" MB/s
	row_of "  that throw the bytes away" "thrown.$store" MB/s
	figure "readers, $what us: requests under way over time" "$(under_way readers)"
	for way in "${ways[@]}"; do
		row_of "$way" "$way.$store" MB/s "$(median "$way.$store.most") at once"
		figure "$way, $what us: bytes read / written or loaded" \
			"$(median "$way.$store.read")"
		figure "$way, $what us: requests under way over time" "$(under_way "$way")"
		bar "$way, of 64 readers, $what us" \
			"$(ratio "$(median "$way.$store")" "$(median "readers.$store")")" \
			">=" "$(limit "$way")" "$(median "$way.$store") MB/s" \
			"$(median "readers.$store") MB/s"
	done
done
