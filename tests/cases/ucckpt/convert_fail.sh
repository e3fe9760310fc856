#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# When ucckpt convert fails, it gives the reason in one line and leaves nothing, except complete
# files if it can be resumed (convert_resume.sh).
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

tag=$good/z1_fp32_dp2/global_step4
dir=$tmp/dir
mkdir "$dir"

# nothing_left WHAT
nothing_left() {
	check "$1: nothing is left" test -z "$(ls -A "$dir")"
	rm -rf "$dir"
	mkdir "$dir"
}

# fails WHAT WORDS COMMAND...
fails() {
	local what=$1 words=$2 rc
	shift 2
	"$@" >"$tmp/out" 2>"$tmp/said"
	rc=$?
	check "$what: exit status 1" test $rc = 1
	check "$what: one line" test "$(wc -l <"$tmp/said")" = 1
	check "$what: '$words'" grep -q -e "^ucckpt: .*$words" "$tmp/said"
	check "$what: nothing on stdout" test ! -s "$tmp/out"
}

fails "ranks of weights" "hfdir_types: Hugging Face weights are no ZeRO checkpoint" \
	ucckpt convert --view zero --ranks 2 "$good/hfdir_types" "$dir/v"
nothing_left "ranks of weights"

# No other weights are written for those that were asked for.
for name in z1_fp32_dp2 hfdir_types; do
	fails "a model of $name" "$name.*: is no distributed checkpoint, and option model" \
		ucckpt convert --view hf --model app.ema "$good/$name" "$dir/v"
	nothing_left "a model of $name"
done

# Existing output stays unchanged.
mkdir "$dir/v"
echo mine >"$dir/v/file"
fails "a full directory" "$dir/v: exists and is not empty" ucckpt convert "$tag" "$dir/v"
check "is left alone" test "$(ls "$dir") $(cat "$dir/v/file")" = "v mine"
rm -r "${dir:?}/v"
echo mine >"$dir/v"
fails "a file" "$dir/v: exists" ucckpt convert "$tag" "$dir/v"
check "is left alone too" test "$(ls "$dir") $(cat "$dir/v")" = "v mine"
rm "$dir/v"
ln -s nowhere "$dir/v"
fails "a link to nowhere" "$dir/v: cannot follow" ucckpt convert "$tag" "$dir/v"
rm "$dir/v"
nothing_left "output that is there"

# Input cannot be converted.
fails "no checkpoint" "no DeepSpeed checkpoint" ucckpt convert "$dir" "$dir/v"
fails "no directory" "$tmp/none: cannot open" ucckpt convert "$tmp/none" "$dir/v"
for name in moe_layers_dp4_z0 sp2_dp2_z3; do
	fails "$name" "$name" ucckpt convert "$good/$name/$(tag_of "$name")" "$dir/a/b"
	nothing_left "$name"
done

# Patterns without a match are refused before anything is written, unless allowed.
strict=$good/z1_unused_pattern_strict_dp2/global_step4
ucckpt convert "$strict" "$dir/v" 2>"$tmp/said"
check "an unused pattern: exit status 1" test $? = 1
check "an unused pattern is named" grep -q 'matches no parameter: nomatch' "$tmp/said"
nothing_left "an unused pattern"
check "--no_strict accepts it" ucckpt convert --no_strict "$strict" "$dir/v" >"$tmp/out" 2>"$tmp/said"
check "with a warning" grep -q 'warning: .*nomatch' "$tmp/said"
check "and converts" test -f "$dir/v/zero/cube/fp32.pt"
rm -r "$dir"
mkdir "$dir"

# Limit the size of files.
# shellcheck disable=SC2317 # called by fails
limited() {
	(ulimit -f 4 && exec "$@")
}
fails "a file size limit" "$dir/a/b/.*: cannot write: File too large" \
	limited ucckpt convert "$tag" "$dir/a/b"
nothing_left "a file size limit"

# Run out of descriptors at any point.  Under sanitizers the program does not start with so few.
if [ "${sanitize:-no}" = no ]; then
	# shellcheck disable=SC2317 # called by fails
	few_files() {
		(ulimit -n "$1" && exec "${@:2}")
	}
	for n in $(seq 5 20); do
		few_files "$n" ucckpt convert "$tag" "$dir/a/b" >"$tmp/out" 2>"$tmp/said" && break
		check "$n descriptors: says so" grep -q "Too many open files" "$tmp/said"
		! grep -q "files are kept" "$tmp/said" || rm -rf "${dir:?}"/*
		nothing_left "$n descriptors"
	done
	check "there were too few at first" test "$n" -gt 5
	rm -rf "${dir:?}"/*
fi
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=64k none "$dir" 2>/dev/null; then
	fails "a mount point" "is a mount point" ucckpt convert "$tag" "$dir"
	umount "$dir"
	nothing_left "a mount point"
else
	echo "not root: a mount point was not tried"
fi
if [ "$(id -u)" != 0 ]; then
	chmod a-w "$dir"
	fails "no permission" "Permission denied" ucckpt convert "$tag" "$dir/v"
	chmod u+w "$dir"
	nothing_left "no permission"
fi

# Interrupt halfway: a model-states file that is not parsed, sparse, and long enough to be
# interrupted in the middle.
cp -r "$good/z3_fp32_dp2/global_step4" "$tmp/long"
truncate -s 2G "$tmp/long/zero_pp_rank_1_mp_rank_00_model_states.pt"
for signal in TERM INT HUP; do
	# A script's background jobs ignore SIGINT.
	"${default_signals[@]}" ucckpt convert "$tmp/long" "$dir/a/b" >"$tmp/out" 2>"$tmp/said" &
	pid=$!
	for _ in $(seq 200); do
		[ -z "$(find "$dir" -name 'zero_pp_rank_1*' -size +0)" ] || break
		sleep 0.02
	done
	check "SIG$signal: it was at work" test -n "$(find "$dir" -name '*.tmp-*')"
	check "SIG$signal: not under the final name" test ! -e "$dir/a/b"
	kill -"$signal" $pid
	wait $pid
	check "SIG$signal: exit status 1" test $? = 1
	check "SIG$signal: one line" test "$(grep -c '^ucckpt: .*interrupted' "$tmp/said")" = 1
	check "SIG$signal: nothing is left but whole files, and their journal" \
		test -z "$(find "$dir" -size +1M)"
	rm -rf "${dir:?}/a"
done
finish
