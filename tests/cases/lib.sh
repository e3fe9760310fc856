# SPDX-License-Identifier: Apache-2.0
# Shared by the cases.  A case sources this first and gets
#
#   $good           real checkpoints and their digests (good/README.md)
#   $tmp            a directory of its own, removed at the end
#   mount_fg SRC    mounts SRC on $mnt, which is $tmp/mnt, and logs the server to $tmp/log
#   unmount         unmounts, waits for the server and checks its exit status
#   check/fail      report what was expected
#   good_cases      digests files of real checkpoints
#
# Variables that a case may read: top_srcdir, top_builddir (from `make check`).

set -u
# A signal that the caller of `make check` ignores (nohup ignores SIGHUP) would be
# ignored by every program under test, and a shell cannot restore it.
# Only coreutils since 8.31 can.
default_signals=(env --default-signal)
"${default_signals[@]}" true 2>/dev/null ||
	default_signals=(perl -e '$SIG{$_} = "DEFAULT" for qw(HUP INT QUIT PIPE TERM); exec @ARGV')
if [ -z "${CASE_SIGNALS-}" ]; then
	export CASE_SIGNALS=default
	exec "${default_signals[@]}" bash "$0" "$@"
fi
good=$(realpath "${top_srcdir:?}")/tests/good
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ucfs-case.XXXXXX") || exit 1
# shellcheck disable=SC2034 # of the cases
mnt=$tmp/mnt
failures=0
server=

skip() {
	echo "skipped: $*"
	exit 77
}

# sanitized_by CASE...: the case compares more results of code that sanitizers see in these.
sanitized_by() {
	[ "${sanitize:-no}" = no ] || skip "sanitizers see the same code in $*"
}

# shellcheck disable=SC2317 # called by the trap
cleanup() {
	if [ -n "$server" ]; then
		fusermount3 -u -z "$tmp/mnt" 2>/dev/null
		kill "$server" 2>/dev/null
		wait "$server" 2>/dev/null
	fi
	rm -rf "$tmp"
}
trap cleanup EXIT

fail() {
	echo "FAILED: $*"
	failures=$((failures + 1))
}

# check "what is promised" COMMAND...: where it fails, show the end of $tmp/out, if there is one.
check() {
	what=$1
	shift
	"$@" && return
	fail "$what ($*)"
	[ ! -s "$tmp/out" ] || tail -n 20 "$tmp/out"
}

finish() {
	[ "$failures" -eq 0 ] || echo "$failures promises broken"
	[ "$failures" -eq 0 ]
	exit
}

require_fuse() {
	[ -x "$top_builddir/ucfs" ] || skip "built without FUSE"
	[ -c /dev/fuse ] || skip "no /dev/fuse"
	[ -r /dev/fuse ] && [ -w /dev/fuse ] || skip "no access to /dev/fuse"
	command -v fusermount3 >/dev/null || skip "no fusermount3"
}

require() {
	command -v "$1" >/dev/null || skip "no $1"
}

# Run the server in a background job with -f, so that its log can be read.
mount_fg() {
	mkdir -p "$tmp/mnt"
	# A background job ignores SIGINT, and so would the server.
	"${default_signals[@]}" ucfs "$1" "$tmp/mnt" -f "${@:2}" 2>"$tmp/log" &
	server=$!
	for _ in $(seq 200); do
		mountpoint -q "$tmp/mnt" && return 0
		kill -0 "$server" 2>/dev/null || break
		sleep 0.05
	done
	fail "mount of $1: $(cat "$tmp/log")"
	server=
	return 1
}

# An unmounted server must exit with 0; a sanitizer that has found a defect changes the status.
unmount() {
	local status
	for _ in $(seq 600); do
		fusermount3 -u "$tmp/mnt" 2>/dev/null && break
		sleep 0.05
	done
	wait "$server"
	status=$?
	server=
	[ "$status" -eq 0 ] || fail "the server exited with $status: $(cat "$tmp/log")"
	grep -q -E 'ERROR: AddressSanitizer|runtime error|WARNING: ThreadSanitizer' "$tmp/log" &&
		fail "a sanitizer complained: $(cat "$tmp/log")"
	if mountpoint -q "$tmp/mnt"; then
		fail "$tmp/mnt is still mounted"
	fi
}

# Print the tag directory of a case, given its digests file.
tag_of() {
	sed -n 's/^tag //p' "$good/$1.digests"
}

# good_cases: the digests files of real checkpoints.  Sanitizers slow a process down fivefold, so
# only every fourth then: unit/views/test_good reads all of them in one process.
good_cases() {
	if [ "${sanitize:-no}" = no ]; then
		printf '%s\n' "$good"/*.digests
	else
		printf '%s\n' "$good"/*.digests | awk 'NR % 4 == 1'
		echo "under sanitizers: every fourth checkpoint" >&2
	fi
}

# good_lists: write lists of all good cases with files into $tmp/lists: NAME.sums for sha256sum,
# "cases" (NAME TAG), "sizes" (SIZE NAME/PATH), and "all", the files of cases that have no others.
good_lists() {
	mkdir "$tmp/lists"
	# shellcheck disable=SC2046 # names of files
	awk -v dir="$tmp/lists/" '
	FNR == 1 { name = FILENAME; sub(".*/", "", name); sub("[.]digests$", "", name) }
	$1 == "tag" { tag[name] = $2 }
	$1 == "complete" { complete[name] = 1 }
	$1 == "exists" { paths[name] = paths[name] name "/" substr($0, 8) "\n" }
	$1 == "file" {
		path = substr($0, 6, length($0) - length($NF) - length($(NF - 1)) - 7)
		print $NF "  ./" path >(dir name ".sums")
		print $(NF - 1), name "/" path >(dir "sizes")
		paths[name] = paths[name] name "/" path "\n"
		files[name]++
	}
	END {
		for (name in files) {
			print name, tag[name] >(dir "cases")
			if (complete[name])
				printf "%s", paths[name] >(dir "all")
		}
	}' $(good_cases)
	sort -o "$tmp/lists/cases" "$tmp/lists/cases"
}

# good_compare FOUND: given "SIZE NAME/PATH" of each file found, check that the listed files exist
# with their sizes, and no others if the list is complete.
good_compare() {
	local lists=$tmp/lists
	check "all files, of their sizes" test -z "$(comm -23 <(sort "$lists/sizes") <(sort "$1") | tee /dev/stderr)"
	check "no other files" diff <(sort "$lists/all") <(
		awk 'NR == FNR { sub("/.*", ""); all[$0] = 1; next }
			{ sub("^[0-9]* ", ""); name = $0; sub("/.*", "", name) }
			name in all' "$lists/all" "$1" | sort)
}

# start_of FILE MEMBER: print the offset of the member's data, from its local header.
start_of() {
	local name at extra
	name=$(LC_ALL=C grep -obUaE "[A-Za-z0-9_-]+/$2" "$1" | head -n 1)
	at=${name%%:*}
	name=${name#*:}
	extra=$(od -An -tu2 -j $((at - 2)) -N 2 "$1")
	echo $((at + ${#name} + extra))
}

# flip FILE OFFSET: invert the lowest bit of a byte.
flip() {
	local byte
	byte=$(od -An -tu1 -j "$2" -N 1 "$1")
	# shellcheck disable=SC2059 # the byte is the format
	printf "\\$(printf %03o $((byte ^ 1)))" |
		dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
