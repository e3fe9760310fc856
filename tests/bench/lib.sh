# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Shared by the benchmarks: sourced, not run.  (Run it and it does nothing.)
#
# UCFS_BENCH_DIR	a run directory written by DeepSpeed, with at least a
#			gigabyte of ZeRO checkpoint in its newest tag;
#			tests/interop/make_bench.py makes one
# UCFS_BENCH_ROUNDS	rounds of each measurement (5)
# UCFS_BENCH_DEST	directory for copies (/dev/shm if it exists); needs three
#			times the checkpoint's size
# UCFS_BENCH_TABLE	file for the lines of the common table, see `run`
# UCFS_BENCH_TMP	directory on a disk for the converted copy (TMPDIR,
#			else /tmp); needs twice the checkpoint's size
#
# Both sides of a comparison are measured in turns, in one run, and reported as a
# ratio of medians: on a shared machine only such ratios repeat.

[ "${BASH_SOURCE[0]}" != "$0" ] || exit 77
set -eu -o pipefail
export LC_ALL=C

rounds=${UCFS_BENCH_ROUNDS:-5}
work=
mnt=
server=

skip() {
	echo "skipped: $*"
	exit 77
}

unmount() {
	local i

	mountpoint -q "$mnt" || return 0
	for i in 1 2 3 4 5 6 7 8 9 10; do
		if [ "$(id -u)" = 0 ]; then
			umount "$mnt" 2>/dev/null && break
		else
			fusermount3 -u "$mnt" 2>/dev/null && break
		fi
		sleep 0.1
	done
	[ -z "$server" ] || wait "$server" || true
	server=
}

cleanup() {
	[ -z "$mnt" ] || unmount
	[ -z "$work" ] || { chmod -R u+w "$work" && rm -rf "$work"; }
	[ -z "${dest:-}" ] || { chmod -R u+w "$dest" && rm -rf "$dest"; }
}

# begin_work [DIR]: make a directory $work, below DIR or on a disk, that is removed at the end.
begin_work() {
	trap cleanup EXIT
	trap 'exit 1' INT TERM HUP
	work=$(mktemp -d "${UCFS_BENCH_TMP:-${1:-${TMPDIR:-/tmp}}}/ucfs-bench.XXXXXX") || exit 1
	mnt=$work/mnt
	mkdir "$mnt"
}

# needs_python MODULE...: skip unless UCFS_DEEPSPEED_PYTHON has these.
needs_python() {
	local module

	[ -n "${UCFS_DEEPSPEED_PYTHON:-}" ] || skip "UCFS_DEEPSPEED_PYTHON is not set"
	for module; do
		"$UCFS_DEEPSPEED_PYTHON" -c "import $module" >/dev/null 2>&1 ||
			skip "$UCFS_DEEPSPEED_PYTHON has no $module"
	done
}

# Set up what all benchmarks need: the checkpoint in $source, its tag's view in $view once
# mounted, directories $work (disk), $dest and $mnt.
begin() {
	local dest_in=${UCFS_BENCH_DEST:-}

	[ -n "${UCFS_BENCH_DIR:-}" ] || skip "UCFS_BENCH_DIR is not set; for a" \
		"checkpoint: python3 tests/interop/make_bench.py --stage 1 DIR" \
		"(takes PyTorch, transformers and DeepSpeed)"
	[ -f "$UCFS_BENCH_DIR/latest" ] ||
		skip "UCFS_BENCH_DIR=$UCFS_BENCH_DIR: no run directory"
	[ -w /dev/fuse ] || skip "/dev/fuse cannot be used"
	[ "$(id -u)" = 0 ] || command -v fusermount3 >/dev/null ||
		skip "no fusermount3, and not root"
	command -v ucfs >/dev/null || skip "ucfs is not built"
	source=$(realpath "$UCFS_BENCH_DIR")
	tag=$(cat "$source/latest")
	if [ -z "$dest_in" ]; then
		dest_in=${TMPDIR:-/tmp}
		[ ! -w /dev/shm ] || dest_in=/dev/shm
	fi
	begin_work
	dest=$(mktemp -d "$dest_in/ucfs-bench.XXXXXX") || exit 1
	view=$mnt/${tag}_universal
	compile readfile
}

# compile NAME: build a program of this directory in $work.
compile() {
	${CC:-cc} -O2 -std=gnu11 -D_GNU_SOURCE -pthread -I"${top_srcdir:-.}" \
		-o "$work/$1" "${top_srcdir:-.}/tests/bench/$1.c" ||
		skip "$1.c cannot be compiled"
}

# begin_own [DIR]: like begin_work, for benchmarks that make their own checkpoints.
begin_own() {
	[ -w /dev/fuse ] || skip "/dev/fuse cannot be used"
	command -v ucfs >/dev/null || skip "ucfs is not built"
	mkrun=${top_builddir:-.}/tests/programs/mkrun
	[ -x "$mkrun" ] || skip "tests/programs/mkrun is not built: make check builds it"
	begin_work "$@"
}

# mount_bare DIR: mount DIR at $mnt with the minimal server, bare.c.  has_bare: check for
# passthrough, which requires root.
bare=${top_builddir:-.}/tests/bench/bare
mount_bare() { "$bare" "$1" "$mnt"; }
has_bare() { [ "$(id -u)" = 0 ] && [ -x "$bare" ]; }

# mount_as OPTIONS: mount $source at $mnt; $server is the process.
mount_as() {
	ucfs "$source" "$mnt" -f -o "$1" &
	server=$!
	until mountpoint -q "$mnt"; do
		kill -0 "$server" 2>/dev/null || { server=; return 1; }
		sleep 0.01
	done
}

# room DIR FACTOR: check that DIR has room for FACTOR checkpoints.
room() {
	local -r have=$(df --output=avail -B1 "$1" | tail -n 1)
	local -r size=$(du -sb "$source/$tag" | cut -f1)

	[ "$have" -gt $((size * $2)) ]
}

# Load the checkpoint into the page cache; evict it.
warm() { cat "$source/$tag"/* >/dev/null; }
cold() {
	local f

	sync
	for f in "$source/$tag"/*; do
		dd if="$f" iflag=nocache count=0 status=none
	done
}

# now: print microseconds.  timed NAME COMMAND...: append the command's milliseconds to series
# NAME.
now() { echo "${EPOCHREALTIME/[.,]/}"; }
timed() {
	local -r series=$1 t=$(now)

	shift
	"$@"
	add "$series" "$(awk -v a="$t" -v b="$(now)" \
		'BEGIN { printf "%.2f", (b - a) / 1000 }')"
}

# Series of numbers, one file each.
add() { echo "$2" >>"$work/series.$1"; }
series() { sort -g "$work/series.$1"; }
median() {
	series "$1" | awk '{ v[NR] = $1 }
		END { printf "%.11g\n", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
}
spread() {
	echo "$(series "$1" | sed -n 1p)..$(series "$1" | tail -n 1)"
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }

# Print a field of /proc/PID/FILE, such as write_bytes of io or RssAnon of status.
proc() { awk -v k="$3:" '$1 == k { print $2 }' "/proc/$1/$2"; }

# Tables: `row WHAT MEDIAN SPREAD [NOTE]'.
header() {
	printf '%s: %s, %s, %d rounds, load average %s\n' "$1" \
		"$(basename "$source")" \
		"$(du -sh --apparent-size "$source/$tag" | cut -f1)" "$rounds" \
		"$(cut -d' ' -f1 /proc/loadavg)"
	printf '%-44s %12s %20s  %s\n' '' median 'min..max' note
}
row() { printf '%-44s %12s %20s  %s\n' "$1" "$2" "${3:-}" "${4:-}"; }
row_of() { row "$1 ($3)" "$(median "$2")" "$(spread "$2")" "${4:-}"; }

# bar WHAT VALUE OP LIMIT [OURS [OTHER]]: report, but do not enforce: a loaded machine is not a
# defect.  The compared values go to the common table, see `run`.
bar() {
	local -r verdict=$(awk -v a="$2" -v b="$4" -v op="$3" 'BEGIN {
		ok = op == "<" ? a < b : a >= b
		print ok ? "ok" : "MISSED" }')

	printf '%-44s %12s %20s  %s\n' "$1" "$2" "bar $3 $4" "$verdict"
	common "$1" "${5:-}" "${6:-}" "$2" "$3 $4" "$verdict"
}
# figure WHAT OURS [OTHER [RATIO]]: the same without a bar.
figure() {
	row "$1" "$2" "${3:-}" "${4:-}"
	common "$1" "$2" "${3:-}" "${4:-}" "" ""
}
common() {
	[ -z "${UCFS_BENCH_TABLE:-}" ] ||
		printf '| %s | %s | %s | %s | %s | %s | %s |\n' \
			"$(basename "$0" .sh)" "$@" >>"$UCFS_BENCH_TABLE"
}
