#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Storage that is far away (slowfs, 64 requests at once): ucckpt convert, cp -r and
# torch.load of the whole tree by one process, against 64 readers that share the shards
# in pieces of 1 MiB.  UCFS_DEEPSPEED_PYTHON names a Python that has torch.
#
# UCFS_BENCH_FAR	delays of a request in microseconds ("2000 20000")
. "${BASH_SOURCE%/*}/lib.sh"
begin
slowfs=${top_builddir:-.}/tests/bench/slowfs
[ -x "$slowfs" ] || skip "tests/bench/slowfs is not built"
python=${UCFS_DEEPSPEED_PYTHON:-python3}
room "$dest" 2 || skip "no room for copies in $dest"
compile pieces
near=$source far=$work/far
mkdir "$far"

be_far() {
	"$slowfs" -d "$delay" -l "$work/requests.$1.$delay" "$near" "$far"
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
# rate SERIES COMMAND...: append MB/s of what the command leaves in $bytes.
rate() {
	local -r series=$1 t=$(now)

	shift
	bytes=0
	"$@"
	add "$series" "$(awk -v a="$t" -v b="$(now)" -v n="$bytes" \
		'BEGIN { printf "%.0f", n / (b - a) }')"
	add "$series.read" "$(awk -v n="$bytes" '$1 == "bytes" { printf "%.3f", $2 / n }' \
		"$far/.slowfs")"
	add "$series.most" "$(awk '$1 == "most" { print $2 }' "$far/.slowfs")"
}
by_convert() {
	ucckpt convert "$far/$tag" "$dest/tree" >/dev/null
	bytes=$(du -sb "$dest/tree" | cut -f1)
}
by_copy() {
	cp -r "$view" "$dest/tree"
	bytes=$(du -sb "$dest/tree" | cut -f1)
}
by_torch() {
	bytes=$("$python" "${BASH_SOURCE%/*}/far_load.py" "$view/zero")
}
ways=(convert copy)
! "$python" -c 'import torch' 2>/dev/null || ways+=(torch)

warm
for delay in ${UCFS_BENCH_FAR:-2000 20000}; do
	for ((i = 0; i < rounds; i++)); do
		be_far readers
		add "readers.$delay" "$("$work/pieces" "$far/$tag"/* | cut -d' ' -f1)"
		be_near
		for way in "${ways[@]}"; do
			be_far "$way"
			[ "$way" = convert ] || mount_as crc=exact
			rate "$way.$delay" "by_$way"
			unmount
			be_near
			rm -rf "$dest/tree"
		done
	done
done
source=$near

header far
for delay in ${UCFS_BENCH_FAR:-2000 20000}; do
	row_of "$delay us: 64 readers of 1 MiB" "readers.$delay" MB/s
	for way in "${ways[@]}"; do
		row_of "$way" "$way.$delay" MB/s \
			"$(median "$way.$delay.most") at once"
		figure "  bytes read / bytes written or loaded" \
			"$(median "$way.$delay.read")"
		limit=0.5
		[ "$way" != convert ] || limit=0.7
		[ "$delay" -lt 10000 ] || limit=0.4
		bar "$way, of 64 readers, $delay us" \
			"$(ratio "$(median "$way.$delay")" "$(median "readers.$delay")")" \
			">=" $limit "$(median "$way.$delay") MB/s" \
			"$(median "readers.$delay") MB/s"
	done
done
# Requests under way over time, of the last round: a column for each tenth.
for log in "$work"/requests.*; do
	row "$(basename "$log") (us), under way" "$(awk '$2 || began { began = 1; v[++n] = $2 }
		$2 { last = n }
		END { for (i = 1; i <= 10; i++) {
			s = k = 0
			for (j = int((i - 1) * last / 10) + 1; j <= i * last / 10; j++) {
				s += v[j]; k++ }
			printf("%s%.0f", (i > 1 ? " " : ""), (k ? s / k : 0)) } }' "$log")"
done
