#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Waiting is visible: a line on a terminal shows the progress and vanishes at the end; the log of
# a mount names a file whose checksum takes long.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/far_lib.sh
. "$(dirname "$0")/../far_lib.sh"
require script

mkdir "$tmp/run"
"$top_builddir/tests/programs/mkrun" "$tmp/run" 1 4000000 4 || fail "mkrun"
tag=global_step4_universal
# Requests are serialised on any number of processors: the 60 that open the run, and as many that
# read a file, take more than two seconds.
"$slowfs" -d 40000 -n 1 "$tmp/run" "$far" || fail "slowfs"

# on_terminal NAME COMMAND: run it on a terminal, whose output goes to $tmp/NAME.
on_terminal() { script -qec "$2" /dev/null >"$tmp/$1" </dev/null; }
# tells NAME WORDS: check that a line was drawn, redrawn, and cleared before the next text.
tells() {
	local -r clear=$'\r\033[K'

	check "$1 says what it does" grep -q "$2: [0-9]* of [0-9]" <(tr '\r' '\n' <"$tmp/$1")
	check "$1 clears the line in the end" test "$(grep -oF "$clear" "$tmp/$1" | wc -l)" = 1
}
on_terminal info "ucckpt info '$far'" &
info=$!
ucckpt info "$far" >"$tmp/report" 2>"$tmp/silent" &
silent=$!
mkdir "$mnt"
on_terminal mount "ucfs -f -o readahead=0 '$far' '$mnt'" &
mount=$!
wait $info $silent
tells info "ucckpt: [a-z ]*"
check "info reports as elsewhere" grep -q "no problems found" "$tmp/info"
check "elsewhere nothing is said" test ! -s "$tmp/silent"

for _ in $(seq 200); do
	mountpoint -q "$mnt" && break
	sleep 0.1
done
tells mount "ucfs: [a-z ]*"

# Two readers begin at the end of one file and wait for its checksum.
file=$mnt/$tag/zero/block.0000.weight/fp32.pt
tail -c 1 "$file" >"$tmp/end" &
reader=$!
tail -c 2 "$file" >"$tmp/end"
wait $reader
said="ucfs: computing the zip checksum of $tag/zero/block.0000.weight/fp32.pt "
check "a checksum that takes long is named once" test "$(grep -c "$said" "$tmp/mount")" = 1
check "with how far it is, and what avoids it" \
	grep -q "$said([0-9]* % of 15.3 MiB); mount with -o crc=zero to skip it" "$tmp/mount"
leave "$mnt"
wait $mount
leave "$far"
finish
