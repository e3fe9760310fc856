#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# An interrupted conversion is resumed: complete files are not read again, and the tree equals that
# of an uninterrupted conversion.  Files of other options are not reused; test_identity and
# test_resume have what else makes another tree or conversion.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/far_lib.sh
. "$(dirname "$0")/../far_lib.sh"

# 36 files of 0.4 MB, and others.  The source is slow, so that it can be interrupted in the
# middle.
mkdir "$tmp/run"
"$top_builddir/tests/programs/mkrun" "$tmp/run" 12 100000 4 || fail "mkrun"
tag=$tmp/run/global_step4
convert() { ucckpt convert --num_merge_workers 2 "$@" 2>"$tmp/said" >"$tmp/out"; }
convert "$tag" "$tmp/whole" || fail "convert: $(cat "$tmp/said")"
convert --crc zero "$tag" "$tmp/zero" || fail "convert: $(cat "$tmp/said")"
size=$(du -sb "$tmp/whole" | cut -f1)
"$slowfs" -d 20000 -n 2 "$tmp/run" "$far" || fail "slowfs"

dir=$tmp/dir
out=$dir/v
# shellcheck disable=SC2317 # called by stop
begun() {
	local -r files=("$dir"/.v.tmp-*/zero/*/*.pt)
	[ ${#files[@]} -ge 12 ]
}
went_on() { grep -q "^ucckpt: $out: going on: [0-9]* of 50 files were there$" "$tmp/said"; }
# stop SIGNAL WHEN: interrupt a conversion to $out that has begun a third of the files, or that
# went_on.
stop() {
	"${default_signals[@]}" ucckpt convert --num_merge_workers 2 \
		"$far/global_step4" "$out" 2>"$tmp/said" >"$tmp/out" &
	pid=$!
	for _ in $(seq 1000); do
		"$2" && break
		sleep 0.02
	done
	kill -"$1" $pid
	wait $pid 2>/dev/null
	check "SIG$1: nothing has the final name" test ! -e "$out"
}
# finishes WHAT AS [OPTION...]: the conversion writes the same tree as AS, and nothing else.
finishes() {
	check "$1: $(cat "$tmp/said")" convert "${@:3}" "$far/global_step4" "$out"
	check "$1: the same tree" diff -r "$2" "$out"
	check "$1: and nothing beside it" test "$(ls -A "$dir" | tr '\n' ' ')" = "latest_universal v "
	rm -r "$dir"
}

stop TERM begun
check "it says what is kept: $(cat "$tmp/said")" grep -q \
	"^ucckpt: $out: interrupted by Terminated; files are kept ([0-9]*), and the same command goes on$" "$tmp/said"
check "and where" grep -q "^ucckpt: $(echo "$dir"/.v.tmp-*) keeps the complete files of $out:" "$tmp/said"
files=("$dir"/.v.tmp-*/zero/*/*.pt)
truncate -s -1 "${files[0]}"
stop KILL went_on
check "it goes on" went_on
bytes=$(far_count bytes)
finishes "interrupted, damaged and killed" "$tmp/whole"
check "it goes on again" went_on
check "and reads less" test $(($(far_count bytes) - bytes)) -lt $((size * 9 / 10))

stop TERM begun
finishes "other options" "$tmp/zero" --crc zero
check "begin again: $(cat "$tmp/said")" test "$(grep -c 'going on' "$tmp/said")" = 0

if [ "$(id -u)" = 0 ] && mkdir "$dir" && mount -t tmpfs -o size=8m none "$dir" 2>/dev/null; then
	convert "$tag" "$out"
	check "a full disk: exit status 1" test $? = 1
	check "it is named: $(cat "$tmp/said")" grep -q "No space left on device" "$tmp/said"
	check "with what is kept" grep -q \
		"^ucckpt: $out: files are kept ([0-9]*), and the same command goes on$" "$tmp/said"
	mount -o remount,size=64m "$dir"
	check "more space" convert "$tag" "$out"
	check "it goes on: $(cat "$tmp/said")" went_on
	check "it is the same tree" diff -r "$tmp/whole" "$out"
	umount "$dir"
else
	echo "not root: a full file system was not tried"
fi
finish
